// Values of command-line options. An error names the option, what was given and what is allowed.
#pragma once

#include "base/error.h"

#include <stdint.h>

// A whole decimal number from min to max.
dt_status dt_option_whole(const char *option, const char *text, const char *hint, int64_t min,
                          int64_t max, int64_t *value);
// A number from min to max.
dt_status dt_option_number(const char *option, const char *text, const char *hint, double min,
                           double max, double *value);
// A device as run.device names it: auto, cuda or cpu (enum dt_device_choice).
dt_status dt_option_device(const char *option, const char *text, const char *hint, int *choice);
