"""CRC-32C for Python code. (Compiled modules include crc32c.h themselves.)"""

cdef extern from "crc32c.h" nogil:
    uint32_t _crc32c "crc32c" (uint32_t crc, const void *data, size_t n)


def crc32c(data not None):
    """Return the CRC-32C of these bytes."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return _crc32c(0, view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
