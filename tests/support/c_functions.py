"""Call the C functions of a compiled module from tests, without a shim in the module."""

import ctypes
from types import ModuleType
from typing import Any

_name = ctypes.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def function(module: ModuleType, name: str, result: Any, *arguments: Any) -> Any:
    """Return a `noexcept nogil` function that the .pxd of `module` declares."""
    capsule = module.__pyx_capi__[name]
    return ctypes.CFUNCTYPE(result, *arguments)(_pointer(capsule, _name(capsule)))
