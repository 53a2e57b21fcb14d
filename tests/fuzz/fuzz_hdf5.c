// fuzz_hdf5 [options] FOLDER: verifies and checks damaged copies of the HDF5 files in FOLDER and
// trains on each for a step, as `dtrain` does. mutate_hdf5.h makes the copies from seeds that
// make_hdf5.py wrote.
//
//   --mutants N      how many; 0: as many as there is time for (0)
//   --seconds S      for how long; 0: until all mutants are done (0)
//   --seed N         another seed makes other mutants (1)
//   --jobs N         how many mutants run at a time (1)
//   --program PATH   the optimised dtrain
//   --failures N     ends after so many failures (20)
//   --only FILE N    runs mutant N of FILE alone and shows all that it prints
//
// Each mutant runs in a child process, which this process forks and which calls the subcommands. It
// must end with exit code 0, 2 or 3 within LIMIT_S seconds of computing, HANGS_S of the clock and
// LIMIT_MIB of memory. Leaks are not checked: the library loses memory on most damaged files.
//
// libhdf5 is no part of dtrain, and no caller can avoid all of its bugs. So if the innermost frame
// of a sanitizer's report or a hang is in libhdf5, the optimised program decides: if it ends with
// 0, 2 or 3 on the same mutant, for example because it catches the crash and names the file, the
// mutant counts as "inside libhdf5". Without --program the mutant counts as failed.
//
// A mutant that fails stays in the current folder as fuzz_hdf5-N-FILE.
#include "mutate_hdf5.h"

#include "base/clock.h"
#include "base/file.h"
#include "cmd/cmd.h"
#include "data/dataset.h"
#include "scratch.h"

#include <dirent.h>
#include <fcntl.h>
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { LIMIT_S = 10, LIMIT_MIB = 1024 };
enum { HANGS_S = 600 };        // time for PROGRAM_LIMIT_S of computing on a 20th of a core
enum { PROGRAM_LIMIT_S = 30 }; // the optimised program has this limit, not LIMIT_S
enum { STOPPED = 98 };         // exit code of a child that exceeded a limit
enum { SHOWN = 6000 };         // bytes of a failed mutant's output that are printed
enum { PROGRESS_S = 10 };

// A large size that a damaged file claims is refused, as on a machine with little memory. The
// sanitizer handles signals even where dtrain would.
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "exitcode=99:detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=512:"
           "quarantine_size_mb=8:handle_segv=2:handle_sigbus=2:handle_sigfpe=2:handle_abort=2";
}

// Does nothing: no file has to survive the machine.
int fsync(int fd)
{
    return fd < 0 ? -1 : 0;
}

static struct {
    long long mutants, seed, jobs, failures, seconds, only;
    const char *program, *only_file, *folder;
} options = {.seed = 1, .jobs = 1, .failures = 20};

static struct hdf5_seed *seeds;
static int64_t n_seeds;

enum outcome { GOOD, USER_ERROR, MACHINE_ERROR, INSIDE_LIBRARY, FAILED, OUTCOMES };
static const char *const outcome_name[OUTCOMES] = {"exit code 0", "exit code 2", "exit code 3",
                                                   "inside libhdf5", "failed"};
static _Atomic long long *counts; // [OUTCOMES], over all jobs

// The files of this job.
static char mutant_path[DT_PATH], output_path[DT_PATH], run_path[DT_PATH];

static const char common_ini[] = "d_model = 8\nlayers = mlp\n"
                                 "[run]\nsteps = 1\nthreads = 1\nprecision = fp32\n"
                                 "[optim]\nlr = 1e-3\n"
                                 "[checkpoint]\nminutes = 0\n"
                                 "[log]\ntensorboard = false\nprofile = false\n"
                                 "[data]\nseq_len = 8\nbatch = 2\n";

// Whether the file is one of groups, whose episodes only a configuration can find. Such a file
// cannot be verified without one.
static bool is_grouped(const struct hdf5_seed *seed)
{
    return strncmp(seed->name, "groups", 6) == 0;
}

// Gives the command line of a stage and returns its number of words.
enum { VERIFY, CHECK_ONLY, TRAIN, STAGES, WORDS = 8 };
static int stage_words(int stage, const struct hdf5_seed *seed, const char *words[WORDS])
{
    static char data[DT_PATH + 16], run[DT_PATH + 16];
    bool tokens = strncmp(seed->name, "tokens", 6) == 0 || strncmp(seed->name, "pairs", 5) == 0;
    int n = 0;
    snprintf(data, sizeof data, "data.train=%s", mutant_path);
    snprintf(run, sizeof run, "run.dir=%s", run_path);
    if (stage == VERIFY)
        words[n++] = "verify";
    if (stage == CHECK_ONLY)
        words[n++] = "--check";
    const char *config = tokens ? "tokens.ini" : is_grouped(seed) ? "groups.ini" : "policy.ini";
    words[n++] = stage == VERIFY ? mutant_path : in_scratch("%s", config);
    if (stage != VERIFY) {
        words[n++] = data;
        words[n++] = run;
    }
    return n;
}

static dt_status run_stage(int stage, const struct hdf5_seed *seed)
{
    const char *words[WORDS];
    struct dt_call call;
    struct dt_comm *comm = NULL;
    int n = stage_words(stage, seed, words);
    dt_status status = dt_call_parse(n, (char **)words, &call);
    if (status == DT_OK)
        status = dt_comm_open(DT_COMM_KIND_SELF, &comm);
    if (status == DT_OK)
        status = call.command->run(comm, &call);
    if (status != DT_OK)
        dt_error_print(dt_error_current(), 0);
    dt_error_clear();
    dt_comm_close(comm);
    dt_call_free(&call);
    return status;
}

// Handles SIGXCPU in a child that hangs or uses too much memory: prints the stack as the sanitizer
// would.
static void print_stack(int signal)
{
    (void)signal;
    fprintf(stderr, "ERROR: AddressSanitizer: over a limit\n");
    __sanitizer_print_stack_trace();
    _exit(STOPPED);
}

// Runs all stages in the child. Training is skipped where its check has failed: it would fail as
// well.
static void run_stages(const struct hdf5_seed *seed)
{
    signal(SIGXCPU, print_stack);
    dt_die_register(dt_report_die);
    dt_status worst = is_grouped(seed) ? DT_OK : run_stage(VERIFY, seed);
    dt_status status = run_stage(CHECK_ONLY, seed);
    if (status == DT_OK)
        status = run_stage(TRAIN, seed);
    fflush(NULL);
    _exit((int)(status > worst ? status : worst));
}

// Runs the stages in the child with the optimised program. Allocated memory is not zero by chance.
static void run_program(const struct hdf5_seed *seed)
{
    int end = 0, worst = 0;
    setenv("MALLOC_PERTURB_", "165", 1);
    for (int stage = is_grouped(seed) ? CHECK_ONLY : VERIFY; stage < STAGES && worst < DT_MACHINE;
         stage++) {
        const char *words[WORDS + 2] = {options.program};
        stage_words(stage, seed, words + 1);
        pid_t child = fork();
        if (child == 0) {
            execv(options.program, (char **)words);
            _exit(126);
        }
        waitpid(child, &end, 0);
        int code = WIFSIGNALED(end) ? 128 + WTERMSIG(end) : WEXITSTATUS(end);
        worst = code > worst ? code : worst;
    }
    _exit(worst);
}

static pid_t start_child(void (*run)(const struct hdf5_seed *), const struct hdf5_seed *seed,
                         rlim_t limit_s)
{
    const struct rlimit cpu = {limit_s, limit_s + 1};
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(1);
    }
    if (child > 0)
        return child;
    int fd = open(output_path, O_CREAT | O_APPEND | O_WRONLY, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
    setpgid(0, 0);
    setrlimit(RLIMIT_CPU, &cpu);
    run(seed);
    return 0;
}

static long long resident_mib(pid_t child)
{
    char path[64];
    long long pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)child);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%*d %lld", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return pages * sysconf(_SC_PAGESIZE) >> 20;
}

// Waits for a child and returns its status as waitpid does. Kills a child that exceeds a limit, and
// sets *excess to the name of that limit. The limit of the clock is larger than that of computing,
// since children may share a core.
static int wait_for(pid_t child, const char **excess)
{
    const struct timespec moment = {0, 50000000};
    double begun = dt_seconds();
    sigset_t ends;
    int end = 0;
    *excess = NULL;
    sigemptyset(&ends);
    sigaddset(&ends, SIGCHLD);
    for (int late = 0; waitpid(child, &end, WNOHANG) == 0; late += *excess != NULL) {
        sigtimedwait(&ends, NULL, &moment);
        if (!*excess && resident_mib(child) > LIMIT_MIB)
            *excess = "uses too much memory";
        if (!*excess && dt_seconds() - begun > HANGS_S)
            *excess = "hangs";
        if (*excess)
            kill(-child, late < 100 ? SIGXCPU : SIGKILL);
    }
    return end;
}

static enum outcome outcome_of(int end, const char *excess)
{
    int code = WIFEXITED(end) && !excess ? WEXITSTATUS(end) : -1;
    return code == DT_OK        ? GOOD
           : code == DT_USER    ? USER_ERROR
           : code == DT_MACHINE ? MACHINE_ERROR
                                : FAILED;
}

// Finds the innermost frame in libhdf5 in the sanitizer's report; NULL if frames of dtrain come
// first. Frames of other libraries, such as memcpy and free, may come before it.
static const char *find_library_frame(char *output)
{
    char *rest = strstr(output, "ERROR: AddressSanitizer");
    for (char *line = rest ? strtok_r(rest, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest)) {
        bool frame = strncmp(line, "    #", 5) == 0;
        if (frame && strstr(line, "libhdf5"))
            return line;
        if (frame && strstr(line, "/src/") && !strstr(line, "libsanitizer") &&
            !strstr(line, "print_stack"))
            return NULL;
    }
    return NULL;
}

static enum outcome run_mutant(const struct hdf5_seed *seed, long long number, int *end,
                               const char **excess)
{
    unlink(output_path);
    *end = wait_for(start_child(run_stages, seed, LIMIT_S), excess);
    enum outcome outcome = outcome_of(*end, *excess);
    if (outcome != FAILED || !options.program)
        return outcome;
    char *output = get_text(output_path);
    const char *frame = find_library_frame(output);
    if (frame) {
        *end = wait_for(start_child(run_program, seed, PROGRAM_LIMIT_S), excess);
        outcome = outcome_of(*end, *excess) == FAILED ? FAILED : INSIDE_LIBRARY;
    }
    if (outcome == INSIDE_LIBRARY)
        fprintf(stderr, "inside libhdf5: mutant %lld of %s, then exit code %d: %s\n", number,
                seed->name, WEXITSTATUS(*end), frame);
    free(output);
    return outcome;
}

// Prints with one call, since other jobs print too.
static void print_failure(const struct hdf5_seed *seed, long long number, int end,
                          const char *excess)
{
    char how[64], *output = get_text(output_path);
    if (WIFSIGNALED(end))
        snprintf(how, sizeof how, "%s", strsignal(WTERMSIG(end)));
    else
        snprintf(how, sizeof how, "exit code %d", WEXITSTATUS(end));
    fprintf(stderr,
            "FAILED: mutant %lld of %s %s: %s\n%.*s\n"
            "it is here as fuzz_hdf5-%lld-%s; again: fuzz_hdf5 --seed %lld --only %s %lld %s\n",
            number, seed->name, excess ? excess : "ends", how, SHOWN, output, number, seed->name,
            options.seed, seed->name, number, options.folder);
    free(output);
}

static enum outcome try_mutant(const struct hdf5_seed *seed, long long number, uint8_t *bytes)
{
    char kept[DT_PATH];
    const char *excess;
    int end;
    int64_t size = hdf5_mutate(seed, (uint64_t)options.seed, number, bytes);
    put_bytes(mutant_path, bytes, size);
    enum outcome outcome = run_mutant(seed, number, &end, &excess);
    if (outcome == FAILED) {
        dt_path(kept, "fuzz_hdf5-%lld-%s", number, seed->name);
        put_bytes(kept, bytes, size);
        print_failure(seed, number, end, excess);
    }
    CHECK_OK(dt_remove_tree(run_path));
    return outcome;
}

static void print_counts(double seconds)
{
    long long total = 0;
    for (int i = 0; i < OUTCOMES; i++)
        total += counts[i];
    fprintf(stderr, "%lld mutants in %.0f s", total, seconds);
    for (int i = 0; i < OUTCOMES; i++)
        fprintf(stderr, ", %s: %lld", outcome_name[i], (long long)counts[i]);
    fputc('\n', stderr);
}

// Sets the paths of the job and allocates memory for a mutant.
static uint8_t *begin_job(long long job)
{
    snprintf(mutant_path, sizeof mutant_path, "%s/mutant-%lld.h5", scratch, job);
    snprintf(output_path, sizeof output_path, "%s/output-%lld", scratch, job);
    snprintf(run_path, sizeof run_path, "%s/run-%lld", scratch, job);
    return malloc((1 << 20) + MUTANT_GROWTH);
}

// Runs every n-th mutant, where n is the number of jobs. Mutants take the files in turn.
static void run_job(long long job)
{
    double begun = dt_seconds(), printed = begun;
    uint8_t *bytes = begin_job(job);
    for (long long i = job; options.mutants == 0 || i < options.mutants; i += options.jobs) {
        double now = dt_seconds();
        if ((options.seconds > 0 && now - begun > (double)options.seconds) ||
            counts[FAILED] >= options.failures)
            break;
        counts[try_mutant(&seeds[i % n_seeds], i / n_seeds, bytes)]++;
        if (job == 0 && now - printed > PROGRESS_S) {
            print_counts(now - begun);
            printed = now;
        }
    }
    free(bytes);
}

static void run_only(void)
{
    uint8_t *bytes = begin_job(0);
    for (int64_t i = 0; i < n_seeds; i++) {
        if (strcmp(seeds[i].name, options.only_file) != 0)
            continue;
        enum outcome outcome = try_mutant(&seeds[i], options.only, bytes);
        counts[outcome]++;
        if (outcome != FAILED) {
            char *output = get_text(output_path);
            fprintf(stderr, "%s", output);
            free(output);
        }
    }
    free(bytes);
}

static int is_shard(const struct dirent *entry)
{
    return strstr(entry->d_name, ".h5") != NULL;
}

static void read_seeds(void)
{
    struct dirent **found;
    int n = scandir(options.folder, &found, is_shard, alphasort);
    CHECK(n > 0, "no seeds in %s", options.folder);
    seeds = calloc((size_t)(n > 0 ? n : 1), sizeof *seeds);
    for (int i = 0; i < n; i++) {
        CHECK_OK(hdf5_seed_read(options.folder, found[i]->d_name, &seeds[n_seeds++]));
        free(found[i]);
    }
    if (n > 0)
        free(found);
}

static bool parse(int argc, char **argv)
{
    const struct {
        const char *name;
        long long *value;
    } numbers[] = {{"--mutants", &options.mutants},
                   {"--seconds", &options.seconds},
                   {"--seed", &options.seed},
                   {"--jobs", &options.jobs},
                   {"--failures", &options.failures}};
    enum { NUMBERS = sizeof numbers / sizeof *numbers };
    for (int i = 1; i + 1 < argc; i += 2) {
        int k = 0;
        while (k < NUMBERS && strcmp(argv[i], numbers[k].name) != 0)
            k++;
        if (k < NUMBERS)
            *numbers[k].value = atoll(argv[i + 1]);
        else if (strcmp(argv[i], "--program") == 0)
            options.program = argv[i + 1];
        else if (strcmp(argv[i], "--only") == 0 && i + 3 < argc) {
            options.only_file = argv[++i];
            options.only = atoll(argv[i + 1]);
        } else
            return false;
    }
    options.folder = argv[argc - 1];
    return argc > 1 && options.folder[0] != '-';
}

int main(int argc, char **argv)
{
    char text[1024];
    sigset_t ends;
    if (!parse(argc, argv)) {
        fprintf(stderr, "the options are in the first lines of %s\n", __FILE__);
        return 1;
    }
    sigemptyset(&ends);
    sigaddset(&ends, SIGCHLD);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    dt_dataset_hdf5_version(); // starts the library once, before the forks
    make_scratch();
    snprintf(text, sizeof text, "[model]\nvocab_size = 64\n%s", common_ini);
    put_text(in_scratch("tokens.ini"), text);
    snprintf(text, sizeof text, "[model]\nheads = go:regression*2\n%s", common_ini);
    put_text(in_scratch("policy.ini"), text);
    snprintf(text, sizeof text,
             "[model]\nheads = go:regression*2\n%s"
             "episodes = subject_*/trial_?\ntime_axis = 1\ntargets = go\n"
             "inputs = eeg level @gain eeg/@rate:id*9\n",
             common_ini);
    put_text(in_scratch("groups.ini"), text);
    read_seeds();
    counts = mmap(NULL, OUTCOMES * sizeof *counts, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double begun = dt_seconds();
    if (options.only_file)
        run_only();
    else
        for (long long job = 0; job < options.jobs; job++)
            if (fork() == 0) {
                run_job(job);
                exit(test_failures > 0);
            }
    for (int end; wait(&end) > 0;)
        CHECK(WIFEXITED(end) && WEXITSTATUS(end) == 0, "a job of the fuzzer failed");
    print_counts(dt_seconds() - begun);
    CHECK_INT(counts[FAILED], 0);
    for (int64_t i = 0; i < n_seeds; i++)
        hdf5_seed_free(&seeds[i]);
    free(seeds);
    remove_scratch();
    return test_end();
}
