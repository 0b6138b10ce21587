"""The paper's experiments on one machine: measured, kept, drawn, and set beside the paper's own numbers.

    python -m benchmarks.paper [all|lan|wan|together|recovery|convoy] [--quick] [--again] [--only NAME,...]
    python -m benchmarks.paper tables [--write]
    python -m benchmarks.paper plots

Every point of an experiment is a file of its own (`points`), so that a run that was interrupted goes on where
it was (`runner`). `curves` has the local and the wide area, `recovery` the crash of a leader, `convoy` the
conflicting messages; `claims` what the paper says and what we want, `predicted` what the delays alone come
to; `analysis`, `crashes` and `conflicts` the figures from the files, `tables` and `plots` what people see.
docs/evaluation.md is written from these.
"""
