// Status and error records. A fallible function returns a status. At the origin of an error,
// DT_FAIL records code, message and hint in the thread's error record; each level above adds a
// frame by DT_TRY. Outside main only dt_die ends the process, by the function that main registers
// (cmd/report.c); a crash inside a library goes the same way (base/crash.h).
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Values are exit codes of the process.
typedef enum dt_status {
    DT_OK = 0,
    DT_USER = 2,    // the user can fix it: arguments, configuration, data
    DT_MACHINE = 3, // the machine failed: I/O, memory, device, communication
} dt_status;

enum { DT_ERROR_FRAMES = 12, DT_ERROR_MESSAGE = 4096, DT_ERROR_HINT = 1024 };

struct dt_error_frame {
    const char *file;
    const char *function;
    int line;
    char note[160]; // what this level was doing, or ""
};

struct dt_error {
    dt_status code;
    char message[DT_ERROR_MESSAGE]; // one line per problem
    char hint[DT_ERROR_HINT];       // how to fix it, or ""
    int n_frames;
    struct dt_error_frame frames[DT_ERROR_FRAMES]; // the origin first
};

// Records a new error (replacing any) and returns `code`. `hint` may be NULL.
dt_status dt_error_raise(dt_status code, const char *file, int line, const char *function,
                         const char *hint, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
// Adds a frame to the current error and returns `status`; `format` may be NULL (no note).
dt_status dt_error_push(dt_status status, const char *file, int line, const char *function,
                        const char *format, ...) __attribute__((format(printf, 5, 6)));

// return DT_FAIL(DT_USER, "give a positive number", "%s is %d", name, value);
#define DT_FAIL(code, hint, ...)                                                                   \
    dt_error_raise((code), __FILE__, __LINE__, __func__, (hint), __VA_ARGS__)

// Returns from the calling function, adding a frame, if `call` fails.
#define DT_TRY(call)                                                                               \
    do {                                                                                           \
        dt_status dt_status_ = (call);                                                             \
        if (dt_status_ != DT_OK)                                                                   \
            return dt_error_push(dt_status_, __FILE__, __LINE__, __func__, NULL);                  \
    } while (0)

// DT_TRY with a note of what was being done: DT_TRY_NOTE(open(p), "opening shard %s", p).
#define DT_TRY_NOTE(call, ...)                                                                     \
    do {                                                                                           \
        dt_status dt_status_ = (call);                                                             \
        if (dt_status_ != DT_OK)                                                                   \
            return dt_error_push(dt_status_, __FILE__, __LINE__, __func__, __VA_ARGS__);           \
    } while (0)

// For functions with something to release: sets `status` and goes to `label` if `call` fails.
#define DT_TRY_GOTO(status, label, call)                                                           \
    do {                                                                                           \
        (status) = (call);                                                                         \
        if ((status) != DT_OK) {                                                                   \
            dt_error_push((status), __FILE__, __LINE__, __func__, NULL);                           \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

// Turns the calling thread's DT_USER error into DT_MACHINE: once a run is under way, problems that
// the user could have fixed at the start (permissions, a missing folder) count as machine failures.
dt_status dt_error_during_run(dt_status status);

// The calling thread's record; code DT_OK if there is no error.
const struct dt_error *dt_error_current(void);
// Move the record out of the calling thread, which then has none, and back into the calling thread.
void dt_error_take(struct dt_error *out);
dt_status dt_error_restore(const struct dt_error *error); // returns error->code
void dt_error_clear(void);

// Formats an error: message, notes of its frames (with `debug` also file:line), hint, final
// newline. Writes at most `size` bytes including the final zero; returns the length.
size_t dt_error_format(const struct dt_error *error, int debug, char *text, size_t size);

// Writes "dtrain: error: " and that text to stderr, in one write(2).
void dt_error_print(const struct dt_error *error, int debug);

// The only way to end the process on an error. `die` receives the calling thread's error; main
// registers it once. Any thread may call dt_die; the first call wins, later ones wait for the
// process to end.
void dt_die_register(void (*die)(const struct dt_error *error));
void dt_die(void) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif
