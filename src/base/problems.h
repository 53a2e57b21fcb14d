// Several things found wrong, reported as one error: a heading and a line for each of the first
// ones.
#pragma once

#include "base/error.h"

enum {
    DT_PROBLEMS_SHOWN = 12,
    DT_PROBLEM_LINE = 300
}; // lines; bytes of a line, longer ones are cut

struct dt_problems {
    int n; // found in all
    char line[DT_PROBLEMS_SHOWN][DT_PROBLEM_LINE];
};

void dt_problems_add(struct dt_problems *problems, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
// DT_OK where there are none, else one DT_USER error: "HEADING:" and the lines. `hint` may be NULL.
dt_status dt_problems_report(const struct dt_problems *problems, const char *hint,
                             const char *heading, ...) __attribute__((format(printf, 3, 4)));
