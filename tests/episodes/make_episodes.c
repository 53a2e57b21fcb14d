// make_episodes LAYOUT PATH FIRST END [DATASET ROW [VALUE] | floats | unit VALUE]: writes episodes
// [FIRST, END) of episode_files.h. With DATASET and ROW, the first number of that row is VALUE or
// NaN, and nothing is compressed, so that all such files have one size. `floats` stores images as
// floats, and `unit` stores `a` in another unit.
#include "episode_files.h"

int main(int argc, char **argv)
{
    struct episode_types types = {H5T_IEEE_F32LE, H5T_STD_I64LE, H5T_STD_U8LE, H5T_IEEE_F64LE,
                                  argc != 8};
    if (argc == 6 && strcmp(argv[5], "floats") == 0)
        types.img = H5T_IEEE_F32LE;
    bool unit = argc == 7 && strcmp(argv[5], "unit") == 0;
    if (unit)
        unit_of_a = strtof(argv[6], NULL);
    for (int layout = 0; argc >= 5 && layout < LAYOUTS; layout++)
        if (strcmp(argv[1], layout_name[layout]) == 0)
            write_episodes(argv[2], (enum episode_layout)layout, &types, atoi(argv[3]),
                           atoi(argv[4]));
    if (argc >= 7 && !unit)
        put_value(argv[2], argv[5], (hsize_t)atoi(argv[6]), 0, argc > 7 ? atof(argv[7]) : NAN);
    return test_checks == 0 || test_failures > 0;
}
