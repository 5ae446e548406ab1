"""Speed: one table of what fedkin does against what people use instead, and scaling curves.

    make bench                                       everything, about a quarter of an hour
    make bench SIZE=--quick                           smaller, two to three minutes
    OMP_NUM_THREADS=1 python -m benchmarks.fmlr      one part alone

Each part is a module with `rows(effort)` that yields `table.Row`s; `run` starts every part in
fresh processes with one and with two threads, gathers, prints and writes.
"""
