// A library for LD_PRELOAD that simulates faults of the machine at the n-th call of a kind. FAULT
// holds settings that blanks separate. Without FAULT there are no faults.
//   call=write,put,fsync,rename,read,get,open,stat,hdf5,mpi,sum   which calls count ("read": pread,
//                                           "get": read; "put": pwrite; "fsync": fdatasync
//                                           too; "hdf5": H5Dopen2, whose path is that of the
//                                           dataset; "mpi": MPI_Test and MPI_Testall;
//                                           "sum": MPI_Iallreduce, whose path is "N elements")
//   path=TEXT                               only calls whose path contains TEXT
//   rank=N                                  only calls on this rank
//   when=FILE                               only calls while this file exists
//   at=N                                    the fault is at the N-th such call of the process and,
//                                           with `times=M`, at the M - 1 calls after it (times=0:
//                                           at all calls after it)
//   do=kill | crash | job | eio | enospc | erofs | eintr | part | short | flip | MILLISECONDS
// `kill` sends SIGKILL to the process and `job` to its process group; `crash` writes to address 0.
// The names of errors make the call fail; after `eintr` the thread's next call succeeds. `part`
// does half of a write or read, and `short` half of a write, with ENOSPC for the rest. `flip`
// changes one bit of what a read returns or of what is summed. A number delays the call.
// FAULT_LOG=FILE receives a line "N CALL PATH" before every call that counts.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

int fsync(int fd);
int fdatasync(int fd);
int rename(const char *from, const char *to);
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);
int64_t H5Dopen2(int64_t place, const char *name, int64_t access);
int MPI_Test(void *request, int *done, void *status);
int MPI_Testall(int n, void *requests, int *done, void *statuses);
int MPI_Iallreduce(const void *from, void *to, int n, void *type, void *op, void *comm,
                   void *request);

static void *volatile nowhere; // NULL
static _Atomic long calls;
static _Thread_local bool met_short, met_part, met_flip; // faults of this thread's last call
static _Thread_local bool interrupted;
static atomic_int full = -1; // the file that a short write filled

// The libc, HDF5 or MPI function that a wrapper stands in for.
#define NEXT(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

// The value of "key=value" in FAULT, or NULL.
static const char *setting(const char *key, char *value, size_t size)
{
    const char *at = getenv("FAULT");
    size_t length = strlen(key);
    while (at && *at) {
        size_t n = strcspn(at, " ");
        if (n > length && strncmp(at, key, length) == 0 && at[length] == '=') {
            snprintf(value, size, "%.*s", (int)(n - length - 1), at + length + 1);
            return value;
        }
        at += n + strspn(at + n, " ");
    }
    return NULL;
}

static long number(const char *key, long otherwise)
{
    char value[64];
    return setting(key, value, sizeof value) ? strtol(value, NULL, 10) : otherwise;
}

static bool is_meant(const char *call, const char *path)
{
    char value[1024];
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!setting("call", value, sizeof value) || !strstr(value, call))
        return false;
    if (setting("path", value, sizeof value) && !strstr(path, value))
        return false;
    if (setting("when", value, sizeof value) && access(value, F_OK) != 0)
        return false;
    return number("rank", -1) < 0 || number("rank", -1) == (rank ? strtol(rank, NULL, 10) : 0);
}

// Whether a fault is due at this call; `fate` receives its name. Faults that are no errors, such as
// `kill`, happen here.
static bool meets(const char *call, const char *path, char *fate, size_t size)
{
    if (!is_meant(call, path))
        return false;
    long n = atomic_fetch_add(&calls, 1) + 1, at = number("at", 0), times = number("times", 1);
    const char *log = getenv("FAULT_LOG");
    if (log) {
        char line[4200];
        int out = NEXT(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        int length = snprintf(line, sizeof line, "%ld %s %s\n", n, call, path);
        if (out < 0 || NEXT(write)(out, line, (size_t)length) != length)
            _exit(99);
        close(out);
    }
    if (at == 0 || n < at || (times > 0 && n >= at + times) || !setting("do", fate, size))
        return false;
    if (strcmp(fate, "kill") == 0)
        kill(getpid(), SIGKILL);
    if (strcmp(fate, "crash") == 0)
        *(volatile int *)nowhere = 1;
    if (strcmp(fate, "job") == 0)
        kill(0, SIGKILL);
    if (atol(fate) > 0)
        usleep((useconds_t)(1000 * atol(fate)));
    return true;
}

// Whether the call must fail, with the reason in errno.
static bool fails(const char *call, const char *path)
{
    static const struct {
        const char *name;
        int error;
    } errors[] = {{"eio", EIO}, {"enospc", ENOSPC}, {"erofs", EROFS}, {"eintr", EINTR}};
    char fate[64];
    met_short = met_part = met_flip = false;
    if (!meets(call, path, fate, sizeof fate))
        return false;
    met_short = strcmp(fate, "short") == 0;
    met_part = strcmp(fate, "part") == 0;
    met_flip = strcmp(fate, "flip") == 0;
    if (strcmp(fate, "eintr") == 0 && !(interrupted = !interrupted))
        return false;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (strcmp(fate, errors[i].name) == 0) {
            errno = errors[i].error;
            return true;
        }
    return false;
}

static const char *path_of(int fd, char *path, size_t size)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, size - 1);
    path[n > 0 ? n : 0] = '\0';
    return path;
}

ssize_t write(int fd, const void *data, size_t size)
{
    char path[4096];
    path_of(fd, path, sizeof path);
    bool is_full = atomic_exchange(&full, -1) == fd;
    if (is_full || fails("write", path)) {
        errno = is_full ? ENOSPC : errno;
        return -1;
    }
    if (!met_short && !met_part)
        return NEXT(write)(fd, data, size);
    if (met_short && size > 1)
        atomic_store(&full, fd);
    return NEXT(write)(fd, data, size > 1 ? size / 2 : size);
}

// `read` has fewer faults: it is interrupted or shortened.
ssize_t read(int fd, void *data, size_t size)
{
    char path[4096];
    if (fails("get", path_of(fd, path, sizeof path)))
        return -1;
    return NEXT(read)(fd, data, met_part && size > 1 ? size / 2 : size);
}

int fdatasync(int fd)
{
    char path[4096];
    return fails("fsync", path_of(fd, path, sizeof path)) ? -1 : NEXT(fdatasync)(fd);
}

int fsync(int fd)
{
    char path[4096];
    return fails("fsync", path_of(fd, path, sizeof path)) ? -1 : NEXT(fsync)(fd);
}

int rename(const char *from, const char *to)
{
    return fails("rename", to) ? -1 : NEXT(rename)(from, to);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    return fails("rename", to) ? -1 : NEXT(renameat2)(from_folder, from, to_folder, to, flags);
}

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;
    va_end(more);
    return fails("open", path) ? -1 : NEXT(open)(path, flags, mode);
}

int stat(const char *path, struct stat *info)
{
    return fails("stat", path) ? -1 : NEXT(stat)(path, info);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    char path[4096];
    return fails("put", path_of(fd, path, sizeof path)) ? -1 : NEXT(pwrite)(fd, data, size, offset);
}

ssize_t pread(int fd, void *data, size_t size, off_t offset)
{
    char path[4096];
    if (fails("read", path_of(fd, path, sizeof path)))
        return -1;
    ssize_t n = NEXT(pread)(fd, data, met_part && size > 1 ? size / 2 : size, offset);
    if (met_flip && n > 0)
        ((unsigned char *)data)[n / 2] ^= 1;
    return n;
}

int64_t H5Dopen2(int64_t place, const char *name, int64_t access)
{
    fails("hdf5", name);
    return NEXT(H5Dopen2)(place, name, access);
}

int MPI_Test(void *request, int *done, void *status)
{
    fails("mpi", "");
    return NEXT(MPI_Test)(request, done, status);
}

int MPI_Testall(int n, void *requests, int *done, void *statuses)
{
    fails("mpi", "");
    return NEXT(MPI_Testall)(n, requests, done, statuses);
}

// dtrain calls it with MPI_IN_PLACE.
int MPI_Iallreduce(const void *from, void *to, int n, void *type, void *op, void *comm,
                   void *request)
{
    char what[64], fate[64];
    snprintf(what, sizeof what, "%d elements", n);
    if (meets("sum", what, fate, sizeof fate) && strcmp(fate, "flip") == 0)
        ((unsigned char *)to)[7] ^= 0x40; // a bit of the exponent of the second fp32
    return NEXT(MPI_Iallreduce)(from, to, n, type, op, comm, request);
}
