// Messages to the user, on stderr, one line each: "dtrain: warning: …". Ranks other than 0 are
// quiet from the start, and all once some rank has written the last words. A live status line,
// where there is one, is cleared before a message and drawn again after it: the two never mix.
// A message that is wider than dt_log_columns continues on lines that begin with blanks.
#pragma once

#include <stdbool.h>

void dt_log_quiet(bool quiet); // true: nothing is printed
#define dt_info(...) dt_log_message("dtrain: ", __VA_ARGS__)
#define dt_warn(...) dt_log_message("dtrain: warning: ", __VA_ARGS__)
void dt_log_message(const char *prefix, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// Whether a line on the progress of some long work is due: every 2 s. *next is 0 at its beginning.
bool dt_log_due(double *next);

// Sets the live line (no newline in it) on stderr, cut to the terminal's width; NULL removes it.
// Nothing is written where dt_log_is_terminal says no.
void dt_log_live(const char *line);
// Whether stderr is a terminal; under mpirun, which passes a rank's stderr on through a pipe,
// whether mpirun's own is.
bool dt_log_is_terminal(void);
void dt_log_assume_terminal(void); // … whatever it is
// How wide a line of stderr may be: as its terminal, at least DT_LOG_LEAST_COLUMNS; elsewhere
// dt_columns.
enum { DT_LOG_LEAST_COLUMNS = 40, DT_LOG_INDENT = 4 };
int dt_log_columns(void);
