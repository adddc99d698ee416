"""Which system calls may a sandboxed command make? A seccomp filter, written here as the kernel reads it.

Namespaces hide the machine; this closes what they leave open: sockets that no network namespace holds (virtual machine
sockets, raw hardware families), kernel memory that no watch on the process tree can see (shared memory, message queues,
semaphores, memory files), keyrings, tracing, new namespaces, mounts, and the interfaces in which most escapes were found.
What is refused fails with "Operation not permitted", so that programs go on; nothing is killed.

Known machines: x86_64 and aarch64. Elsewhere there is no filter, and the namespaces alone must do.
"""

import errno
import platform
import struct

_LOAD, _EQUAL, _GREATER_EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_X32_BIT = 0x40000000
_NEW_USER_NAMESPACE = 0x10000000
_FAMILIES = (1, 2, 10, 16)
"""Unix, IPv4, IPv6 and routing sockets: the ones that a network namespace holds."""

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64); None where the machine has no such call.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "iopl": (172, None),
    "ioperm": (173, None),
}
_CLONE = {"x86_64": 56, "aarch64": 220}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_CLONE3 = 435


def program(machine: str | None = None) -> bytes | None:
    """The filter for a machine, as an array of `sock_filter`; None if the machine is not known.

    Args:
        machine: As `platform.machine()` names it; by default this one.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT:
        return None
    column = list(_AUDIT).index(machine)
    refused = [numbers[column] for numbers in _REFUSED.values()]
    steps = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, _AUDIT[machine]), _error(errno.EPERM)]
    steps += [(_LOAD, 0, 0, _NUMBER)]
    if machine == "x86_64":  # a second numbering of the same calls
        steps += [(_GREATER_EQUAL, 0, 1, _X32_BIT), _error(errno.EPERM)]
    for number in refused:
        if number is not None:
            steps += [(_EQUAL, 0, 1, number), _error(errno.EPERM)]
    # Its flags lie in memory, where a filter cannot look; the C library then takes the older call.
    steps += [(_EQUAL, 0, 1, _CLONE3), _error(errno.ENOSYS)]
    steps += [(_EQUAL, 0, 4, _CLONE[machine]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    steps += [(_ANY_BIT, 0, 1, _NEW_USER_NAMESPACE), _error(errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    steps += [(_EQUAL, 0, len(_FAMILIES) + 2, _SOCKET[machine]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    steps += [(_EQUAL, len(_FAMILIES) - index, 0, family) for index, family in enumerate(_FAMILIES)]
    steps += [_error(errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _error(number: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERROR | number)
