// Collects what is wrong and raises it as one error.
#include "base/problems.h"

#include <stdarg.h>
#include <stdio.h>

void dt_problems_add(struct dt_problems *problems, const char *format, ...)
{
    if (problems->n < DT_PROBLEMS_SHOWN) {
        va_list list;
        va_start(list, format);
        vsnprintf(problems->line[problems->n], DT_PROBLEM_LINE, format, list);
        va_end(list);
    }
    problems->n++;
}

dt_status dt_problems_report(const struct dt_problems *problems, const char *hint,
                             const char *heading, ...)
{
    if (problems->n == 0)
        return DT_OK;
    char title[DT_ERROR_MESSAGE / 8], text[DT_ERROR_MESSAGE];
    va_list list;
    va_start(list, heading);
    vsnprintf(title, sizeof title, heading, list);
    va_end(list);
    int used = 0, shown = problems->n < DT_PROBLEMS_SHOWN ? problems->n : DT_PROBLEMS_SHOWN;
    for (int i = 0; i < shown; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "\n  %s", problems->line[i]);
    if (problems->n > shown)
        snprintf(text + used, sizeof text - (size_t)used, "\n  and %d more", problems->n - shown);
    return DT_FAIL(DT_USER, hint, "%s:%s", title, text);
}
