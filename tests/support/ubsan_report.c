/*
 * Puts what UBSan finds where AddressSanitizer puts what it finds; `make asan` loads it.
 *
 * GCC has a library for each, with functions of the same names. UBSan calls those of
 * AddressSanitizer, so its own log_path sets theirs, and what it says is on stderr: in the log
 * of a daemon, say, which nobody reads as long as the test passes.
 */

#include <sanitizer/common_interface_defs.h>
#include <stdio.h>

void __ubsan_get_current_report_data(
    const char **kind, const char **message, const char **file, unsigned *line, unsigned *column,
    char **address);

/* Called by UBSan, which says the stack itself. */
void __ubsan_on_report(void)
{
    const char *kind, *message, *file;
    unsigned line, column;
    char *address, text[1000];
    __ubsan_get_current_report_data(&kind, &message, &file, &line, &column, &address);
    snprintf(text, sizeof(text), "%s:%u:%u: runtime error: %s", file, line, column, message);
    __sanitizer_report_error_summary(text);
}
