// Collects problems as the lines of one text, and raises them as one error.
#include "base/problems.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

void dt_problems_add(struct dt_problems *problems, const char *format, ...)
{
    char line[DT_PROBLEM_LINE];
    DT_PRINT_ARGUMENTS(line, sizeof line, format);
    size_t room = sizeof problems->text - problems->used, length = strlen(line) + 1;
    if (problems->hidden > 0 || length >= room)
        problems->hidden++;
    else
        problems->used += (size_t)snprintf(problems->text + problems->used, room, "%s%s",
                                           problems->n > 0 ? "\n" : "", line);
    problems->n++;
}

static const char *more(const struct dt_problems *problems, char text[32])
{
    text[0] = 0;
    if (problems->hidden > 0)
        snprintf(text, 32, "\nand %d more", problems->hidden);
    return text;
}

dt_status dt_problems_raise(const struct dt_problems *problems, const char *hint)
{
    char rest[32];
    if (problems->n == 0)
        return DT_OK;
    return DT_FAIL(DT_USER, hint, "%s%s", problems->text, more(problems, rest));
}

dt_status dt_problems_report(const struct dt_problems *problems, const char *hint,
                             const char *heading, ...)
{
    char title[512], text[DT_ERROR_MESSAGE] = "", rest[32];
    if (problems->n == 0)
        return DT_OK;
    DT_PRINT_ARGUMENTS(title, sizeof title, heading);
    for (const char *line = problems->text; *line;) {
        int length = (int)strcspn(line, "\n");
        dt_append(text, sizeof text, "\n  %.*s", length, line);
        line += length + (line[length] == '\n');
    }
    return DT_FAIL(DT_USER, hint, "%s:%s%s", title, text, more(problems, rest));
}
