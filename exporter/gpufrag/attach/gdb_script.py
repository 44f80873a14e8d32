"""Runs in gdb's own Python: stops the process, puts one call into its interpreter's queue, and continues it.

In the stopped process it makes two system calls and calls Py_AddPendingCall, which needs no GIL and allocates
nothing, so it does not matter what the process was doing. The call has its own stack and saves the thread's vector
registers itself: if they are large, gdb's own way to call a function fails and leaves a broken thread. All addresses
are arguments, so gdb loads no symbols, which would take many seconds for torch.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import gdb

QUIET = (
    "set pagination off",
    "set confirm off",
    "set language c",
    "handle all nostop noprint pass",
    "handle SIGSEGV SIGBUS SIGILL SIGFPE SIGABRT stop nopass",  # in our call; a program's own signal comes again
)
GENERAL = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", *(f"r{number}" for number in range(8, 16)))
REGISTERS = (*GENERAL, "rip", "eflags", "orig_rax")
SYSCALL = b"\x0f\x05"
MMAP, MPROTECT = 9, 10  # of x86_64
RESTART, RESTART_BLOCK, RESTART_SYSCALL = (-512, -513, -514), -516, 219
"""What the kernel leaves as the result of a system call that it would restart itself."""
PAGE = 4096
ROOM = 24 * PAGE
"""One page of code, two of text, one for the vector registers, the rest is stack. It stays in the process."""
RUN_AT = 64
"""Where RUN begins in the page of code, after CALL."""
CALL = bytes.fromhex(
    "fc b8e7000000 31d2 490fae6500"  # cld; eax, edx = which vector registers; xsave64 [r13]
    "41ffd4 4189c6"  # call r12; r14d = eax
    "b8e7000000 31d2 490fae6d00 cc"  # and back: xrstor64 [r13]; int3
)
RUN = (
    "53 4154 4155 4889fb"  # push rbx, r12, r13; rbx = the text
    "48b8 {new_dict} ffd0 4885c0 7440 4989c4"  # r12 = PyDict_New(), or fail
    "4889df be01010000 4889c2 4889c1 4531c0"  # text, Py_file_input, the dict twice, NULL
    "48b8 {run_string} ffd0 4989c5"  # r13 = PyRun_StringFlags(...)
    "4c89e7 48bb {release} ffd3"  # Py_DecRef(r12)
    "4d85ed 7409 4c89ef ffd3 31c0 eb05"  # fail without a result; Py_DecRef(r13), return 0
    "b8ffffffff 415d 415c 5b c3"  # fail: return -1
)
"""What the interpreter calls: int run(void *text). An exception stays set, so that it reaches the program.

PyRun_SimpleString would print it instead, and the program may have raised it in a signal handler.
"""


def main(request: dict[str, Any]) -> None:
    for command in QUIET:
        gdb.execute(command, to_string=True)
    gdb.execute(f"attach {request['pid']}", to_string=True)
    try:
        report({"stage": "stopped"})
        answer = inject(request)
    finally:
        gdb.execute("detach", to_string=True)
    report(answer)


def inject(request: dict[str, Any]) -> dict[str, Any]:
    thread = choose_thread()
    before = registers()
    try:
        return enqueue(request, thread)
    finally:
        thread.switch()
        write(with_system_call_restarted(before))


def enqueue(request: dict[str, Any], thread: Any) -> dict[str, Any]:
    memory = gdb.selected_inferior()
    near = bytes(memory.read_memory(request["mmap"], 128))
    if SYSCALL not in near:
        return {"error": "its C library has no mmap of the expected form"}
    instruction = request["mmap"] + near.index(SYSCALL)
    room = system_call(instruction, MMAP, 0, ROOM, 0x3, 0x22, -1, 0)  # read and write; private, of no file
    text = request["code"].encode() + b"\0"
    if -PAGE < room < 0 or len(text) > 2 * PAGE:
        return {"error": "it has no memory left for the request"}
    addresses = {name: request[name].to_bytes(8, "little").hex() for name in ("new_dict", "run_string", "release")}
    memory.write_memory(room, CALL)
    memory.write_memory(room + RUN_AT, bytes.fromhex(RUN.format(**addresses)))
    memory.write_memory(room + PAGE, text)
    if system_call(instruction, MPROTECT, room, PAGE, 0x5, 0, 0, 0) != 0:  # read and execute
        return {"error": "it may not make memory executable (SELinux or a hardened kernel)"}
    return call(thread, room, request["add_pending_call"])


def call(thread: Any, room: int, function: int) -> dict[str, Any]:
    """Call Py_AddPendingCall(RUN, text). All threads run meanwhile, because one of them may hold its lock."""
    start = {"rip": room, "rsp": room + ROOM - 64, "rdi": room + RUN_AT, "rsi": room + PAGE, "r12": function}
    write({**start, "r13": room + 3 * PAGE, "orig_rax": -1})
    gdb.execute("continue", to_string=True)
    if gdb.selected_thread() != thread or value("rip") != room + len(CALL):
        return {"error": "the call did not finish and was undone"}
    if value("r14") & 0xFFFFFFFF:
        return {"error": "its queue of pending calls is full; try again"}
    return {"stage": "asked"}


def system_call(instruction: int, number: int, *arguments: int) -> int:
    """Return its result. One thread executes one instruction, which changes only rax, rcx and r11."""
    names = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
    write({**dict(zip(names, arguments)), "rax": number, "orig_rax": -1, "rip": instruction})
    gdb.execute("set scheduler-locking on")
    gdb.execute("stepi", to_string=True)
    gdb.execute("set scheduler-locking off")
    return value("rax")


def choose_thread() -> Any:
    """Prefer a thread that waits in the kernel: it holds none of the interpreter's short locks."""
    threads = sorted(gdb.selected_inferior().threads(), key=lambda thread: thread.num)
    thread = next((thread for thread in threads if is_in_system_call(thread)), threads[0])
    thread.switch()
    return thread


def is_in_system_call(thread: Any) -> bool:
    thread.switch()
    return value("orig_rax") >= 0 and bytes(gdb.selected_inferior().read_memory(value("rip") - 2, 2)) == SYSCALL


def with_system_call_restarted(before: dict[str, int]) -> dict[str, int]:
    """Restart an interrupted system call, as the kernel does for a thread that was only stopped.

    Otherwise the program would see an error in its sleep or read that no program should see.
    """
    if before["orig_rax"] < 0 or before["rax"] not in (*RESTART, RESTART_BLOCK):
        return before
    number = RESTART_SYSCALL if before["rax"] == RESTART_BLOCK else before["orig_rax"]
    return {**before, "rax": number, "orig_rax": -1, "rip": before["rip"] - len(SYSCALL)}


def registers() -> dict[str, int]:
    return {name: value(name) for name in REGISTERS}


def value(register: str) -> int:
    """Return a signed 64-bit number."""
    bits = int(gdb.parse_and_eval(f"${register}").format_string(format="x"), 16)
    return bits - (1 << 64) if bits >> 63 else bits


def write(values: dict[str, int]) -> None:
    """One by one, because gdb would otherwise write the vector registers too."""
    for name, number in values.items():
        gdb.execute(f"set var ${name} = {number}", to_string=True)


def report(what: dict[str, Any]) -> None:
    print("gpufrag " + json.dumps(what))
    sys.stdout.flush()


try:
    main(json.loads(os.environ["GPUFRAG_ATTACH"]))
except (gdb.error, gdb.MemoryError, KeyboardInterrupt) as error:
    report({"error": str(error) or "interrupted"})
