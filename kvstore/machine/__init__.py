"""The store's state machine: what delivered messages do to one group's keys.

The contract
============

A `Machine` is a function of the messages delivered to its group, in their order, and of nothing else. All
replicas of a group deliver the same messages in the same order, so they compute the same results and hold the
same rows. Every change of this package keeps these rules:

- **No clock, no randomness, no I/O.** Time is the global timestamp of a delivery: its position in the order,
  and the revision of what it writes. A test lists all modules that may be imported here.
- **No iteration over unordered things** where the order can reach a result, a row or an effect: sort sets,
  and rely on insertion order only where deliveries determine it.
- **Delivery never waits.** A transaction that needs locks or other groups' votes waits in the machine, while
  later deliveries are executed. Everything up to the *watermark* is executed, and reads at a
  revision and serializable reads see no more.
- **All groups of a transaction judge it alike**: by the message, and by what exactly its destinations have
  delivered. Each group votes on its own conditions, and on whether it can perform its share of each branch;
  the votes, not the groups' states, decide.
- **An error is a result.** What cannot be done is refused (`Refused`) or fails (`Failed`), in every replica
  alike. An exception is a broken invariant and stops the replica.
- **Limits are constants of the cluster** (`Limits`, `RESULTS_BYTES`, `WINDOW`): all replicas must have the
  same, in every version of the code that runs at the same time. What a configuration sets, such as the
  largest value, is judged before ordering, or is in the message (`Append.most`): a replica that executes a
  message after a restart must not judge it by another configuration than the others did.
- **Durable together**: the rows of the `Store` and the `MachineState`, as of one moment between two calls, in
  one batch, with the ordering's checkpoint of the same position. A machine that starts from them takes the
  deliveries that follow. Deliveries that it had before are ignored.

A host calls `deliver` for each message, `vote` and `outcome` for what other replicas report, `read` for
strict reads and `work` now and then; `drain` returns what is to be sent (`Effects`). The production host is
`kvstore.store.partition`.

The modules, in reading order
=============================

- `formula`: conditions combined by any and all;
- `request`: transactions, conditions, operations, limits; `validate` judges them, once, before ordering;
- `results`: what becomes of them; `commands`: the rest of what a message may carry, and whose request it is;
- `placement`: which group has which key, and a group's share of a transaction;
- `locks`: which delivered transaction may execute next;
- `ordered`, `versions`: maps in the order of keys; values by revision, compaction, the change feed;
- `operations`: evaluates conditions and performs operations;
- `sessions`: executes each request once;
- `state`: the values that go in and out, and all that is durable; `waiting`: transactions in flight;
- `housekeeping`, `machine`: all of it together;
- `merge`: the results of several groups as one, for the gateway;
- `codec`: the values as bytes, for messages and disks.

Adding an operation
===================

Paths below are of `kvstore/`, unless they begin with a top-level folder. An operation on numbers (as `add`,
`min`, `max`) is no new struct but a member of `request.Arithmetic`: go on with `operations._calculate`,
`simulation/model.calculate` (a dict: only tests notice what it lacks) and step 3.

1. `request.py`: a struct with a `tag` of its own, which never changes: it is in messages and on disks. Add it
   to `PointOperation` (it has a `key`) or to `RangeOperation` and `RANGE_OPERATIONS` (it has a `range`), and
   to `ReadOperation` if replicas may perform it without ordering. Set `writes`. Now run `make types`:
   it fails at each of these places until the operation is handled.

   - `request._size_of`: what of it is judged, and how many bytes count;
   - `placement._FALLIBLE`, if it is a write that may turn out to be impossible (the type checker cannot see
     this one): then other groups wait for its group's vote;
   - `operations.perform`: what it does, and its result;
   - `merge._merge`: how groups' results become one (operations on ranges only);
   - `store/reads.perform_reads`, `simulation/checks._results_at`: reads without ordering (a `ReadOperation`);
   - `simulation/model.Model._perform`, `_owners` (ranges): the same, naively, to check the machine against;
   - `simulation/checks._read_by`: which keys it reads, for the search for circles;
   - `tests/unit/kvstore/api/messages.operation`: how a client writes it, for the tests of the API.

   An operation that is neither on a key nor on a range must also be handled in `request.footprint_of` (what
   to lock) and in `placement.owners_of` and `_split` (which groups it belongs to).
2. `results.py`, if no result fits: a struct with a tag, in `OperationResult`. The type checker then asks for
   `api/convert._result`, `api/convert.results_size` and `simulation/checks._merge`.
3. `proto/wbkv_proto/v1/kv.proto`: a field of `Operation` (and of `OperationResult`), then `make proto`;
   `api/convert.Reader._operation` reads it. The type checker cannot see a field that is missing there;
   `tests/unit/kvstore/api/test_convert.py` can, once `transactions` in `messages.py` beside it makes the
   operation.
4. The SDK, in `clients/wbkv/`: `operations.py` (a class and a function, `result_of` for a new result),
   `__init__.py`, a method of `aio/client.py` if it deserves one (then `make sync-client`), `core/tracing.py`
   and `record/history.py` if traces and histories record it, `cli/script.py` and `cli/language.py` for
   `wbkv txn`. `docs/api.md`, `docs/cli.md`, `make reference`.
5. Tests: `tests/unit/kvstore/machine/workload.py` must generate it (a test says so), for
   `tests/unit/kvstore/machine/test_machine_model.py`, which runs machines against the model; a workload in
   `simulation/workloads.py`, if it has an invariant of its own.

A condition is added alike (`Condition`: `request.footprint_of`, `request._size_of`, `operations.evaluate`,
`placement.owners_of`, `Model._unmet`, `Model._owners`, `checks`, `messages.condition`); so is a command
(`Housekeeping`: `Housekeeper._housekeep`, `Model._housekeep`).

A tag, a field or a limit that exists must not change its meaning: replicas of two versions must agree. An old
replica takes an unknown tag for a malformed request, so upgrade every node before a client uses a new one.
"""

from kvstore.machine.codec import (
    TABLES,
    Unreadable,
    decode_machine_state,
    decode_request,
    decode_result,
    encode_machine_state,
    encode_request,
    encode_result,
)
from kvstore.machine.commands import Command, Delivered, Request
from kvstore.machine.machine import Machine
from kvstore.machine.merge import Merged, merge, merge_aborted
from kvstore.machine.ordered import MemoryMap, OrderedMap, Table
from kvstore.machine.placement import Placement, Scheme
from kvstore.machine.request import Footprint, InvalidRequest, Limits, Transaction, validate
from kvstore.machine.results import Aborted, Decision, Outcome, Result
from kvstore.machine.state import Effects, Executed, MachineState, Store, Vote
from kvstore.machine.versions import Compacted, NotYet

__all__ = [
    "TABLES",
    "Aborted",
    "Command",
    "Compacted",
    "Decision",
    "Delivered",
    "Effects",
    "Executed",
    "Footprint",
    "InvalidRequest",
    "Limits",
    "Machine",
    "MachineState",
    "MemoryMap",
    "Merged",
    "NotYet",
    "OrderedMap",
    "Outcome",
    "Placement",
    "Request",
    "Result",
    "Scheme",
    "Store",
    "Table",
    "Transaction",
    "Unreadable",
    "Vote",
    "decode_machine_state",
    "decode_request",
    "decode_result",
    "encode_machine_state",
    "encode_request",
    "encode_result",
    "merge",
    "merge_aborted",
    "validate",
]
