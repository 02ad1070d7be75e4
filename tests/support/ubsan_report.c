/*
 * Writes UBSan's findings to where AddressSanitizer writes its own; loaded by `make asan`.
 *
 * GCC has a separate library for each sanitizer, with the same function names. UBSan calls
 * AddressSanitizer's functions, so its own log_path sets theirs, and its output goes to stderr:
 * for example to a daemon's log, which is not examined if the test passes.
 */

#include <sanitizer/common_interface_defs.h>
#include <stdio.h>

void __ubsan_get_current_report_data(
    const char **kind, const char **message, const char **file, unsigned *line, unsigned *column,
    char **address);

/* Called by UBSan, which prints the stack itself. */
void __ubsan_on_report(void)
{
    const char *kind, *message, *file;
    unsigned line, column;
    char *address, text[1000];
    __ubsan_get_current_report_data(&kind, &message, &file, &line, &column, &address);
    snprintf(text, sizeof(text), "%s:%u:%u: runtime error: %s", file, line, column, message);
    __sanitizer_report_error_summary(text);
}
