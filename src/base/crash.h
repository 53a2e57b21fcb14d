// Ends the process with a message that names the file when a library crashes over a damaged file,
// or never returns, as libhdf5 may. The note of what is being read is made before each call of that
// library (data/h5_file.h).
#pragma once

struct dt_crash_note {
    const char *library; // "libhdf5"
    const char *path;    // the file that it reads
    const char *hint;
};

// After this call SIGSEGV, SIGBUS, SIGFPE and SIGABRT of a thread with a note end the process by
// dt_die (base/error.h), on a thread that waits for this: exit code 3. Where that thread fails too,
// or does not end the process in time, the handler itself writes the words and exits. Signals of
// threads without a note do what they did before. main calls this once, after MPI has installed its
// handlers. A thread that computes for `limit_s` seconds inside the library ends the process in the
// same way; waiting for a disk does not count. Under a sanitizer nothing is caught: its report says
// more.
enum { DT_CRASH_LIMIT_S = 20 }; // a call takes a second at most, of millions of links or chunks
void dt_crash_catch(double limit_s);

// The calling thread enters and leaves the library, one thread at a time. `note` stays until
// dt_crash_leave.
void dt_crash_enter(const struct dt_crash_note *note);
void dt_crash_leave(void);
// Says that the thread inside is at another call: its time starts again.
void dt_crash_advance(void);
