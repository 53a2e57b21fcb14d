// Writes a shard that is wrong in one way, for tests/fault/bad_input.sh: make_shard KIND PATH.
#include <hdf5.h>
#include <stdio.h>
#include <string.h>

static int write_dataset(hid_t file, const char *name, hid_t type, int n_dims, const hsize_t *dims)
{
    static const unsigned char zeros[1 << 20];
    hid_t space = H5Screate_simple(n_dims, dims, NULL);
    hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    herr_t result = H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros);
    H5Dclose(dataset);
    H5Sclose(space);
    return result < 0;
}

// Its second chunk is stored unfiltered and holds a tenth of its bytes.
static int write_short_chunk(hid_t file)
{
    static const unsigned char zeros[10000];
    const hsize_t dims = sizeof zeros, chunk = 1000, offset = 1000;
    hid_t space = H5Screate_simple(1, &dims, NULL), plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(plist, 1, &chunk);
    H5Pset_deflate(plist, 1);
    hid_t id = H5Dcreate2(file, "tokens", H5T_STD_U8LE, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    int failed = H5Dwrite(id, H5T_STD_U8LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros) < 0 ||
                 H5Dwrite_chunk(id, H5P_DEFAULT, 1, &offset, chunk / 10, zeros) < 0;
    H5Dclose(id);
    H5Pclose(plist);
    H5Sclose(space);
    return failed;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *kind, *dataset;
        int n_dims;
        hsize_t dims[2];
    } kinds[] = {
        {"two-dimensional", "tokens", 2, {100, 100}},
        {"float", "tokens", 1, {10000}},
        {"signed", "tokens", 1, {10000}},
        {"short", "tokens", 1, {10}},
        {"absent", "words", 1, {10000}},
    };
    for (size_t i = 0; argc == 3 && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(argv[1], kinds[i].kind) == 0) {
            hid_t type = strcmp(argv[1], "float") == 0    ? H5T_IEEE_F32LE
                         : strcmp(argv[1], "signed") == 0 ? H5T_STD_I16LE
                                                          : H5T_STD_U8LE;
            hid_t file = H5Fcreate(argv[2], H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
            int failed =
                write_dataset(file, kinds[i].dataset, type, kinds[i].n_dims, kinds[i].dims);
            return H5Fclose(file) < 0 || failed;
        }
    if (argc == 3 && strcmp(argv[1], "short-chunk") == 0) {
        hid_t file = H5Fcreate(argv[2], H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
        int failed = write_short_chunk(file);
        return H5Fclose(file) < 0 || failed;
    }
    fprintf(stderr, "usage: make_shard KIND PATH\n");
    return 2;
}
