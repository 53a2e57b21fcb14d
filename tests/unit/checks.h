// What tests of wrong arguments share: a good set of arguments stands first; each case spoils one
// field of it, and the message must name op, argument and value.
#pragma once

#include "op_fixture.h"

static float memory[64];
static int32_t numbers[16];
static struct dt_backend backend;

static void check_refused(dt_status status, const char *op, const char *argument, const char *value)
{
    const char *message = status == DT_OK ? "" : dt_error_current()->message;
    CHECK(status == DT_MACHINE, "%s with %s %s is taken (status %d)", op, argument, value,
          (int)status);
    CHECK(strstr(message, op) && strstr(message, argument) && strstr(message, value),
          "\"%s\" lacks one of \"%s\", \"%s\", \"%s\"", message, op, argument, value);
    dt_error_clear();
}

// Runs op on `good` with one field spoilt.
#define REFUSE_AS(op, name, field, spoilt, value)                                                  \
    do {                                                                                           \
        struct dt_##op##_args args = good;                                                         \
        args.field = spoilt;                                                                       \
        check_refused(dt_##op(&backend, &args, NULL), #op, name, value);                           \
    } while (0)

#define REFUSE(op, field, spoilt, value) REFUSE_AS(op, #field, field, spoilt, value)
#define REFUSE_NULL(op, field)           REFUSE(op, field, NULL, "NULL")

// Each wrong thing about one view.
#define REFUSE_VIEW(op, view)                                                                      \
    do {                                                                                           \
        REFUSE_AS(op, #view, view.data, NULL, "NULL");                                             \
        REFUSE_AS(op, #view, view.rows, 1, "[1, ");                                                \
        REFUSE_AS(op, #view, view.cols, 3, ", 3]");                                                \
        REFUSE(op, view.stride, 1, "1");                                                           \
        REFUSE_AS(op, #view, view.dtype, DT_F16, "fp16");                                          \
        REFUSE_AS(op, #view, view.dtype, DT_BF16, "bf16");                                         \
    } while (0)

static void open_backend(void)
{
    for (int i = 0; i < 64; i++)
        memory[i] = 1.0f;
    backend = open_cpu(1);
}
