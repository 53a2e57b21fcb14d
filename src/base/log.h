// Messages to the user, on stderr, one line each: "dtrain: warning: …". Ranks other than 0 are
// quiet from the start, and all once some rank has written the last words. A live status line,
// where there is one, is cleared before a message and drawn again after it: the two never mix.
#pragma once

#include <stdbool.h>

void dt_log_quiet(bool quiet); // true: nothing is printed
void dt_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void dt_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Whether a line on how far some long work has come is due: every 2 s. *next is 0 at its beginning.
bool dt_log_due(double *next);

// Sets the live line (no newline in it) on stderr, cut to the terminal's width; NULL removes it.
// Nothing is written where dt_log_is_terminal says no.
void dt_log_live(const char *line);
// Whether stderr is a terminal; under mpirun, which passes a rank's stderr on through a pipe,
// whether mpirun's own is.
bool dt_log_is_terminal(void);
void dt_log_assume_terminal(void); // … whatever it is
