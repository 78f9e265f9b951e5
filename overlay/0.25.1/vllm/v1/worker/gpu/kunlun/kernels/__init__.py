# SPDX-License-Identifier: Apache-2.0
"""The sites of a decode step as Triton kernels of the fork's own, one or two launches a site (KUNLUN_KERNELS=fused).

The head of a step, five sites, is two launches (head.py).

What is not here is upstream's own kernel, or with KUNLUN_UPSTREAM_FIXES what `launchers` has. Offsets into tables are int64; a program's loops end where its data ends, so
that nothing depends on the host knowing lengths, and a launch can be captured in a graph. Numbers that change from
step to step are not specialised: no batch size compiles anew.
"""
