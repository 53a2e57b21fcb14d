// See site.h.
#include "site.h"

#include <filesystem>
#include <link.h>
#include <map>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

namespace simt
{
// The program is the first object.
static int take_base(struct dl_phdr_info *info, size_t, void *base)
{
    *static_cast<uintptr_t *>(base) = info->dlpi_addr;
    return 1;
}

// Returns the path within the repository and the line from "path:line (discriminator 2)\n". Returns
// "" if there is no line, or if it says that nothing is known.
static std::string read_place(FILE *pipe)
{
    const std::string way = SIMT_REPOSITORY;
    char line[512];
    if (!fgets(line, sizeof line, pipe) || line[0] == '?')
        return "";
    const std::string place = std::filesystem::path(line).lexically_normal().string(); // no "x/.."
    const size_t from = place.compare(0, way.size(), way) == 0 ? way.size() : 0;
    return place.substr(from, place.find_first_of(" \n", from) - from);
}

// Returns the innermost inlined function that is not the model's own (simt.h), and the function
// that everything is inlined into.
static std::string ask(const std::string &program, const std::string &address)
{
    const std::string command = "addr2line -ie '" + program + "' " + address + " 2>/dev/null";
    FILE *pipe = popen(command.c_str(), "r");
    if (!pipe)
        return "";
    std::string inner, outer;
    for (std::string next = read_place(pipe); !next.empty(); next = read_place(pipe)) {
        if (inner.empty() || inner.find("/simt.h:") != std::string::npos)
            inner = next;
        outer = next;
    }
    pclose(pipe);
    return outer == inner ? inner : inner + ", called from " + outer;
}

std::string site_name(const void *return_address)
{
    static std::map<const void *, std::string> names;
    std::string &name = names[return_address];
    if (!name.empty())
        return name;
    char path[512], address[32];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    const std::string program(path, n > 0 ? (size_t)n : 0);
    uintptr_t base = 0;
    dl_iterate_phdr(take_base, &base);
    // Within the call.
    snprintf(address, sizeof address, "0x%zx", (uintptr_t)return_address - base - 1);
    name = ask(program, address);
    return name = name.empty() ? program + "+" + address : name;
}
} // namespace simt
