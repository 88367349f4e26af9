"""System calls that no program in a cell may make, depending on the rung. `seccomp` assembles the filter.

Numbers are (x86_64, aarch64), from the kernel's `syscall_64.tbl` and `asm-generic/unistd.h`; None if the machine has no
such call. A call is in the first table whose condition explains the refusal.
"""

from __future__ import annotations

from typing import Final

Numbers = tuple[int | None, int | None]
Calls = dict[str, Numbers]

EVERYWHERE: Final[Calls] = {
    # Memory and descriptors of another process.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # Cores and priority beyond the grant.
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    # Mounts and namespaces.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "listns": (470, 470),
    "unshare": (272, 97),
    "setns": (308, 268),
    # Large parts of the kernel that programs do not need.
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # The machine itself.
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
    # Files by number instead of by path.
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    # Placement and sharing of memory.
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "vmsplice": (278, 75),
    # Secret memory stays in its file without being mapped; only mapped memory is held to RLIMIT_MEMLOCK.
    "memfd_secret": (447, 447),
    # Contexts of asynchronous IO count against one number for the whole machine (fs.aio-max-nr).
    "io_setup": (206, 0),
}

INOTIFY: Final[Calls] = {"inotify_init": (253, None), "inotify_init1": (294, 26)}
"""Answered EMFILE, as if the user's instances were used up, so that `tail -f` and others poll. The kernel counts
instances by user through every user namespace: all cells count for the manager's user, who has 128."""

UNCOUNTED: Final[Calls] = {
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
}
"""Memory that no process has to map. Refused if no control group counts it, because the watchdog sees mapped memory."""

SHARED_IPC: Final[Calls] = {
    "shmat": (30, 196),
    "shmdt": (67, 197),
    "shmctl": (31, 195),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_unlink": (241, 181),
}
"""Reach existing objects of the host by number or name. Refused if the cell shares the host's objects, together with
`UNCOUNTED`, because objects outlive their creators."""

OTHERS_METADATA: Final[Calls] = {
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "file_setattr": (469, 469),
}
"""Change metadata that Landlock does not mediate, of every file that belongs to this user or that everybody may write.
Refused if the host's files can be named."""

OTHERS_ATTRIBUTES: Final[Calls] = {
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
}
"""The same, for attributes. Answered ENOTSUP, as by a file system without attributes: `cp -p` accepts that, not
EPERM."""

SUPERVISED: Final[Calls] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "utimensat": (280, 88),
}
"""The same, but linkers, archivers and version control need these calls: init makes them for the program
(`inside/metadata`)."""

STOPPING: Final[Calls] = {"timer_create": (222, 107)}
"""Refused if environments are stopped by SIGSTOP: a timer that sends SIGCONT would let a program continue."""
