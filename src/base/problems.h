// Collects problems, so that the user sees all of them in one error, one per line.
#pragma once

#include "base/error.h"

enum { DT_PROBLEM_LINE = 2048 }; // bytes of a line; longer ones are cut

struct dt_problems {
    int n;      // found
    int hidden; // found, but not in text, which was full
    size_t used;
    char text[DT_ERROR_MESSAGE - 1024]; // leaves room for the heading and the indentation
};

void dt_problems_add(struct dt_problems *problems, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
// DT_OK if there are none, else one DT_USER error with a line for each. `hint` may be NULL.
dt_status dt_problems_raise(const struct dt_problems *problems, const char *hint);
// dt_problems_raise with the lines indented under "HEADING:".
dt_status dt_problems_report(const struct dt_problems *problems, const char *hint,
                             const char *heading, ...) __attribute__((format(printf, 3, 4)));
