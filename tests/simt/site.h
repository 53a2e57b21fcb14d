// The source location of a return address.
#pragma once

#include <string>

namespace simt
{
// Returns "kernels/scan.cuh:163, called from kernels/scan_forward.cu:81", which addr2line finds in
// the debug information; without either "program+0x1234".
std::string site_name(const void *return_address);
} // namespace simt
