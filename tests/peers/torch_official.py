"""A Mamba mixer that uses the kernels of the packages mamba_ssm and causal_conv1d, where these are installed.

  official        the whole mixer as one function, including causal_conv1d, as mamba_ssm itself calls it
  official-scan   only the scan; the convolution uses causal_conv1d if that is installed, otherwise PyTorch
"""
import importlib

import torch
import torch.nn.functional as F

import common

options = common.options


def need(module):
    try:
        return importlib.import_module(module)
    except ImportError as error:
        common.skip(f"no {module.split('.')[0]} here: {error}")


interface = need("mamba_ssm.ops.selective_scan_interface")
if options.scan == "official":
    need("causal_conv1d")


def convolution():
    try:
        return importlib.import_module("causal_conv1d").causal_conv1d_fn
    except ImportError:
        return None


causal_conv1d_fn = convolution()


def in_projection(p, x):
    """Takes x [B, L, D]. Returns [B, 2E, L] with time fastest, as the kernels expect."""
    B, L, D = x.shape
    return (p["in_proj"] @ x.reshape(B * L, D).t()).view(-1, B, L).transpose(0, 1)


def whole(p, x):
    return interface.mamba_inner_fn(in_projection(p, x), p["conv_weight"][:, None], p["conv_bias"], p["x_proj"],
                                    p["dt_proj"], p["out_proj"], None, -torch.exp(p["a_log"]), None, None, p["d"],
                                    delta_bias=p["dt_bias"], delta_softplus=True)


def convolve(p, u):
    if causal_conv1d_fn:
        return causal_conv1d_fn(u, p["conv_weight"], p["conv_bias"], activation="silu")
    padding = common.D_CONV - 1
    y = F.conv1d(u, p["conv_weight"][:, None], p["conv_bias"], padding=padding, groups=options.inner)
    return F.silu(y[..., : u.shape[-1]])


def scan_alone(p, x):
    B, L, _ = x.shape
    u, z = in_projection(p, x).chunk(2, 1)
    u = convolve(p, u)
    dt, b, c = F.linear(u.transpose(1, 2), p["x_proj"]).split([options.dt_rank, options.d_state, options.d_state], -1)
    dt = (p["dt_proj"] @ dt.reshape(B * L, -1).t()).view(-1, B, L).transpose(0, 1)
    b, c = (x.transpose(1, 2).contiguous() for x in (b, c))
    y = interface.selective_scan_fn(u, dt, -torch.exp(p["a_log"]), b, c, p["d"], z=z, delta_bias=p["dt_bias"],
                                    delta_softplus=True)
    return F.linear(y.transpose(1, 2), p["out_proj"])


mixer = whole if options.scan == "official" else scan_alone
