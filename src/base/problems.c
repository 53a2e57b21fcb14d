// Collects problems as the lines of one text, and raises them as one error.
#include "base/problems.h"

#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { HEADING = 512 }; // bytes; longer ones are cut

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

static dt_status raise_text(const struct dt_problems *problems, const char *hint, const char *text)
{
    char rest[32] = "";
    if (problems->hidden > 0)
        snprintf(rest, sizeof rest, "\nand %d more", problems->hidden);
    return DT_FAIL(DT_USER, hint, "%s%s", text, rest);
}

dt_status dt_problems_raise(const struct dt_problems *problems, const char *hint)
{
    return problems->n > 0 ? raise_text(problems, hint, problems->text) : DT_OK;
}

dt_status dt_problems_report(const struct dt_problems *problems, const char *hint,
                             const char *heading, ...)
{
    char text[DT_ERROR_MESSAGE];
    if (problems->n == 0)
        return DT_OK;
    DT_PRINT_ARGUMENTS(text, HEADING, heading);
    dt_append(text, sizeof text, ":");
    for (const char *line = problems->text; *line;) {
        int length = (int)strcspn(line, "\n");
        dt_append(text, sizeof text, "\n  %.*s", length, line);
        line += length + (line[length] == '\n');
    }
    return raise_text(problems, hint, text);
}
