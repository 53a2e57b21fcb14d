// Values of options: all of the text, in range.
#include "cmd/options.h"

#include "job/settings.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

dt_status dt_option_whole(const char *option, const char *text, const char *hint, int64_t min,
                          int64_t max, int64_t *value)
{
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (errno || end == text || *end || parsed < min || parsed > max)
        return DT_FAIL(DT_USER, hint, "%s %s is not a whole number from %" PRId64 " to %" PRId64,
                       option, text, min, max);
    *value = parsed;
    return DT_OK;
}

dt_status dt_option_number(const char *option, const char *text, const char *hint, double min,
                           double max, double *value)
{
    char *end;
    errno = 0;
    double parsed = strtod(text, &end);
    if (errno || end == text || *end || !(parsed >= min && parsed <= max)) // NaN is in no range
        return DT_FAIL(DT_USER, hint, "%s %s is not a number from %.10g to %.10g", option, text,
                       min, max);
    *value = parsed;
    return DT_OK;
}

dt_status dt_option_device(const char *option, const char *text, const char *hint, int *choice)
{
    static const char *const words[] = {
        [DT_DEVICE_AUTO] = "auto", [DT_DEVICE_CUDA] = "cuda", [DT_DEVICE_CPU] = "cpu"};
    for (int i = 0; i < (int)(sizeof words / sizeof *words); i++)
        if (strcmp(text, words[i]) == 0) {
            *choice = i;
            return DT_OK;
        }
    return DT_FAIL(DT_USER, hint, "%s %s is none of auto, cuda, cpu", option, text);
}
