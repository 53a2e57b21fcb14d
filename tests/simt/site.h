// The source location of a return address.
#pragma once

#include <string>

namespace simt
{
// "kernels/scan.cuh:163, called from kernels/scan_forward.cu:81", from the debug information by
// addr2line; without either "program+0x1234".
std::string site_name(const void *return_address);
} // namespace simt
