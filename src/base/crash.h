// Ends the process with a message that names the file when a library crashes on a damaged file or
// never returns, as libhdf5 may. Each call of that library is preceded by a note of the file that
// it reads (data/h5_file.h).
#pragma once

struct dt_crash_note {
    const char *library; // "libhdf5"
    const char *path;    // the file that it reads
    const char *hint;
};

// After this call, SIGSEGV, SIGBUS, SIGFPE and SIGABRT in a thread with a note end the process by
// dt_die (base/error.h) on a waiting thread, with exit code 3. If that thread fails or takes too
// long, the signal handler writes the message and exits. Signals in other threads keep their old
// handlers. A thread that computes for `limit_s` seconds inside the library ends the process in the
// same way; waiting for a disk does not count. main calls this once, after MPI has installed its
// handlers. Sanitizer builds catch nothing, because the sanitizer's report says more.
// (A call takes at most a second, even with millions of links or chunks.)
enum { DT_CRASH_LIMIT_S = 20 };
void dt_crash_catch(double limit_s);

// The calling thread enters and leaves the library; only one thread at a time may be inside. `note`
// is borrowed until dt_crash_leave.
void dt_crash_enter(const struct dt_crash_note *note);
void dt_crash_leave(void);
// Restarts the time limit of the thread inside, which begins another call.
void dt_crash_advance(void);
