// Linked into programs of AddressSanitizer builds, to separate Open MPI's leaks from dtrain's.
// dlclose does nothing, so Open MPI's plug-ins stay mapped and a leak's stack names the library to
// suppress (tests/lsan.supp). Leaks of what MPI_Init_thread and MPI_Finalize allocate are not
// reported, since the stack of a block from vasprintf stops in the C library, which keeps no frame
// pointers. MPI's profiling interface (MPI-3.1, chapter 14) gives each function a second name.
#include <dlfcn.h>
#include <mpi.h>
#include <sanitizer/lsan_interface.h>

int dlclose(void *handle)
{
    (void)handle;
    return 0;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    __lsan_disable();
    int code = PMPI_Init_thread(argc, argv, required, provided);
    __lsan_enable();
    return code;
}

int MPI_Finalize(void)
{
    __lsan_disable();
    int code = PMPI_Finalize();
    __lsan_enable();
    return code;
}
