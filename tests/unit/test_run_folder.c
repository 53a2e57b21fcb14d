// Who holds the lock of a run's folder, whatever is written in it.
#include "job/run_folder.h"

#include "scratch.h"

#include <sys/file.h>

int main(void)
{
    struct {
        struct dt_run_folder folder;
        char guard[8];
    } run = {.guard = "guarded"};
    char text[400], name[160], message[512], mine[64], *after;
    const size_t shown = sizeof run.folder.previous - 1;
    make_scratch();
    memset(text, 'x', sizeof text);
    snprintf(name, sizeof name, "%.*s", (int)shown, text);
    put_bytes(in_scratch(".lock"), text, sizeof text); // of another version, or damaged
    int fd = open(in_scratch(".lock"), O_RDONLY);
    CHECK_INT(flock(fd, LOCK_EX), 0);
    snprintf(message, sizeof message, "%s is in use by %s", scratch, name);
    CHECK_INT(dt_run_folder_open(scratch, 0, &run.folder), DT_USER);
    CHECK_STR(dt_error_current()->message, message); // cut
    close(fd);
    CHECK_OK(dt_run_folder_open(scratch, 0, &run.folder));
    CHECK_STR(run.folder.previous, name);
    CHECK_STR(run.guard, "guarded");
    after = get_text(in_scratch(".lock")); // nothing of the long text is left
    snprintf(mine, sizeof mine, "process %d on host ", (int)getpid());
    CHECK(strncmp(after, mine, strlen(mine)) == 0 && strchr(after, '\n') == strchr(after, 0) - 1,
          "the lock holds %s", after);
    free(after);
    dt_run_folder_close(&run.folder);
    dt_error_clear();
    remove_scratch();
    return test_end();
}
