/* The log callback that a transport's init() receives: printf-like, callable from any thread.
 * It only formats; `debug_log.rs` decides what is wanted and keeps the lines. */
#include <stdarg.h>
#include <stdio.h>

int ferrite_log_wanted(int level, unsigned long subsystems);
void ferrite_log_line(int level, const char *file, int line, const char *text);

void ferrite_logger(int level, unsigned long subsystems, const char *file, int line,
                    const char *format, ...);

void ferrite_logger(int level, unsigned long subsystems, const char *file, int line,
                    const char *format, ...) {
  char text[2048];
  va_list arguments;
  if (!format || !ferrite_log_wanted(level, subsystems)) return;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  ferrite_log_line(level, file, line, text);
}
