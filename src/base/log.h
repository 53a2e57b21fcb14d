// Messages to the user, on stderr, one line each: "dtrain: warning: …". Ranks other than 0 are
// always quiet, and all ranks are quiet once one has reported the end of the job. A live status
// line is cleared before a message and redrawn after it. A message wider than dt_log_columns
// continues on indented lines.
#pragma once

#include <stdbool.h>

void dt_log_quiet(bool quiet); // true: nothing is printed
#define dt_info(...) dt_log_message("dtrain: ", __VA_ARGS__)
#define dt_warn(...) dt_log_message("dtrain: warning: ", __VA_ARGS__)
void dt_log_message(const char *prefix, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// Whether a progress line of some long work is due (every 2 s). *next is 0 at the start of the
// work.
bool dt_log_due(double *next);

// Sets the live line (without newline) on stderr, cut to the terminal's width; NULL removes it.
// Does nothing unless dt_log_is_terminal.
void dt_log_live(const char *line);
// Whether stderr is a terminal. Under mpirun, which forwards a rank's stderr through a pipe,
// whether mpirun's stderr is.
bool dt_log_is_terminal(void);
void dt_log_assume_terminal(void); // makes dt_log_is_terminal true
// Width of a line on stderr: the terminal's, at least DT_LOG_LEAST_COLUMNS; without a terminal
// dt_columns.
enum { DT_LOG_LEAST_COLUMNS = 40, DT_LOG_INDENT = 4 };
int dt_log_columns(void);
