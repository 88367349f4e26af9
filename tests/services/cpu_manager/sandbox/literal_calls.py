"""System calls and their answers, written out: name, number on x86_64, number on aarch64, answers.

Nothing here is imported from the sandbox, so that a call that is deleted or added there has to be deleted or added
here as well. The numbers are those of the kernel's `arch/x86/entry/syscalls/syscall_64.tbl` and
`include/uapi/asm-generic/unistd.h`; `-` where a machine has no such call.

The answers are for three rungs: control groups (G), namespaces without them (N), Landlock (L). `.` allows;
`init` hands the call to the cell's init.
"""

from typing import NamedTuple

RUNGS = ("G", "N", "L")

_REFUSED = """
ptrace                101 117  EPERM  EPERM  EPERM
process_vm_readv      310 270  EPERM  EPERM  EPERM
process_vm_writev     311 271  EPERM  EPERM  EPERM
process_madvise       440 440  EPERM  EPERM  EPERM
process_mrelease      448 448  EPERM  EPERM  EPERM
kcmp                  312 272  EPERM  EPERM  EPERM
pidfd_getfd           438 438  EPERM  EPERM  EPERM
sched_setaffinity     203 122  EPERM  EPERM  EPERM
sched_setscheduler    144 119  EPERM  EPERM  EPERM
sched_setparam        142 118  EPERM  EPERM  EPERM
sched_setattr         314 274  EPERM  EPERM  EPERM
ioprio_set            251  30  EPERM  EPERM  EPERM
mount                 165  40  EPERM  EPERM  EPERM
umount2               166  39  EPERM  EPERM  EPERM
pivot_root            155  41  EPERM  EPERM  EPERM
chroot                161  51  EPERM  EPERM  EPERM
move_mount            429 429  EPERM  EPERM  EPERM
open_tree             428 428  EPERM  EPERM  EPERM
open_tree_attr        467 467  EPERM  EPERM  EPERM
fsopen                430 430  EPERM  EPERM  EPERM
fsconfig              431 431  EPERM  EPERM  EPERM
fsmount               432 432  EPERM  EPERM  EPERM
fspick                433 433  EPERM  EPERM  EPERM
mount_setattr         442 442  EPERM  EPERM  EPERM
statmount             457 457  EPERM  EPERM  EPERM
listmount             458 458  EPERM  EPERM  EPERM
listns                470 470  EPERM  EPERM  EPERM
unshare               272  97  EPERM  EPERM  EPERM
setns                 308 268  EPERM  EPERM  EPERM
keyctl                250 219  EPERM  EPERM  EPERM
add_key               248 217  EPERM  EPERM  EPERM
request_key           249 218  EPERM  EPERM  EPERM
bpf                   321 280  EPERM  EPERM  EPERM
perf_event_open       298 241  EPERM  EPERM  EPERM
userfaultfd           323 282  EPERM  EPERM  EPERM
io_uring_setup        425 425  EPERM  EPERM  EPERM
io_uring_enter        426 426  EPERM  EPERM  EPERM
io_uring_register     427 427  EPERM  EPERM  EPERM
io_setup              206   0  EPERM  EPERM  EPERM
kexec_load            246 104  EPERM  EPERM  EPERM
kexec_file_load       320 294  EPERM  EPERM  EPERM
init_module           175 105  EPERM  EPERM  EPERM
finit_module          313 273  EPERM  EPERM  EPERM
delete_module         176 106  EPERM  EPERM  EPERM
reboot                169 142  EPERM  EPERM  EPERM
swapon                167 224  EPERM  EPERM  EPERM
swapoff               168 225  EPERM  EPERM  EPERM
acct                  163  89  EPERM  EPERM  EPERM
quotactl              179  60  EPERM  EPERM  EPERM
quotactl_fd           443 443  EPERM  EPERM  EPERM
syslog                103 116  EPERM  EPERM  EPERM
settimeofday          164 170  EPERM  EPERM  EPERM
clock_settime         227 112  EPERM  EPERM  EPERM
adjtimex              159 171  EPERM  EPERM  EPERM
clock_adjtime         305 266  EPERM  EPERM  EPERM
vhangup               153  58  EPERM  EPERM  EPERM
personality           135  92  EPERM  EPERM  EPERM
iopl                  172   -  EPERM  EPERM  EPERM
ioperm                173   -  EPERM  EPERM  EPERM
modify_ldt            154   -  EPERM  EPERM  EPERM
uselib                134   -  EPERM  EPERM  EPERM
_sysctl               156   -  EPERM  EPERM  EPERM
open_by_handle_at     304 265  EPERM  EPERM  EPERM
name_to_handle_at     303 264  EPERM  EPERM  EPERM
fanotify_init         300 262  EPERM  EPERM  EPERM
lookup_dcookie        212  18  EPERM  EPERM  EPERM
move_pages            279 239  EPERM  EPERM  EPERM
migrate_pages         256 238  EPERM  EPERM  EPERM
mbind                 237 235  EPERM  EPERM  EPERM
set_mempolicy         238 237  EPERM  EPERM  EPERM
vmsplice              278  75  EPERM  EPERM  EPERM
memfd_secret          447 447  EPERM  EPERM  EPERM
inotify_init          253   -  EMFILE EMFILE EMFILE
inotify_init1         294  26  EMFILE EMFILE EMFILE
clone3                435 435  ENOSYS ENOSYS ENOSYS
memfd_create          319 279  .      EPERM  EPERM
shmget                 29 194  .      EPERM  EPERM
semget                 64 190  .      EPERM  EPERM
msgget                 68 186  .      EPERM  EPERM
mq_open               240 180  .      EPERM  EPERM
shmat                  30 196  .      .      EPERM
shmdt                  67 197  .      .      EPERM
shmctl                 31 195  .      .      EPERM
semop                  65 193  .      .      EPERM
semtimedop            220 192  .      .      EPERM
semctl                 66 191  .      .      EPERM
msgsnd                 69 189  .      .      EPERM
msgrcv                 70 188  .      .      EPERM
msgctl                 71 187  .      .      EPERM
mq_unlink             241 181  .      .      EPERM
chown                  92   -  .      .      EPERM
fchown                 93  55  .      .      EPERM
lchown                 94   -  .      .      EPERM
fchownat              260  54  .      .      EPERM
utime                 132   -  .      .      EPERM
utimes                235   -  .      .      EPERM
futimesat             261   -  .      .      EPERM
file_setattr          469 469  .      .      EPERM
setxattr              188   5  .      .      EOPNOTSUPP
lsetxattr             189   6  .      .      EOPNOTSUPP
fsetxattr             190   7  .      .      EOPNOTSUPP
setxattrat            463 463  .      .      EOPNOTSUPP
removexattr           197  14  .      .      EOPNOTSUPP
lremovexattr          198  15  .      .      EOPNOTSUPP
fremovexattr          199  16  .      .      EOPNOTSUPP
removexattrat         466 466  .      .      EOPNOTSUPP
chmod                  90   -  .      .      init
fchmod                 91  52  .      .      init
fchmodat              268  53  .      .      init
fchmodat2             452 452  .      .      init
utimensat             280  88  .      .      init
"""

_ALLOWED = """
read 0 63, write 1 64, close 3 57, fstat 5 80, lseek 8 62, mmap 9 222, mprotect 10 226, munmap 11 215, brk 12 214,
rt_sigaction 13 134, rt_sigprocmask 14 135, ioctl 16 29, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66,
sched_yield 24 124, mremap 25 216, msync 26 227, mincore 27 232, madvise 28 233, dup 32 23, nanosleep 35 101,
getitimer 36 102, setitimer 38 103, getpid 39 172, sendfile 40 71, connect 42 203, sendto 44 206, recvfrom 45 207,
sendmsg 46 211, recvmsg 47 212, shutdown 48 210, bind 49 200, listen 50 201, getsockname 51 204, setsockopt 54 208,
getsockopt 55 209, clone 56 220, fork 57 -, vfork 58 -, execve 59 221,
exit 60 93, wait4 61 260, kill 62 129, uname 63 160, fcntl 72 25,
flock 73 32, fsync 74 82, truncate 76 45, ftruncate 77 46, getcwd 79 17, chdir 80 49, fchdir 81 50, umask 95 166,
getrlimit 97 163, getrusage 98 165, sysinfo 99 179, times 100 153, getuid 102 174, getgid 104 176, setpgid 109 154,
getppid 110 173, setsid 112 157, setreuid 113 145, getgroups 115 158, setresuid 117 147, capget 125 90,
rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigqueueinfo 129 138, sigaltstack 131 132, statfs 137 43,
getpriority 140 141, setpriority 141 140, sched_getparam 143 121, sched_getscheduler 145 120, mlock 149 228,
munlock 150 229, prctl 157 167, setrlimit 160 164, sync 162 81, gettid 186 178, readahead 187 213, getxattr 191 8,
listxattr 194 11, tkill 200 130, futex 202 98, sched_getaffinity 204 123, getdents64 217 61, set_tid_address 218 96,
fadvise64 221 223, timer_create 222 107, clock_gettime 228 113, clock_nanosleep 230 115, exit_group 231 94,
tgkill 234 131, waitid 247 95, openat 257 56, mkdirat 258 34, mknodat 259 33, newfstatat 262 79, unlinkat 263 35,
renameat 264 38, linkat 265 37, symlinkat 266 36, readlinkat 267 78, faccessat 269 48, pselect6 270 72, ppoll 271 73,
set_robust_list 273 99, splice 275 76, tee 276 77, sync_file_range 277 84, epoll_pwait 281 22, timerfd_create 283 85,
fallocate 285 47, accept4 288 242, signalfd4 289 74, eventfd2 290 19, epoll_create1 291 20, dup3 292 24, pipe2 293 59,
preadv 295 69, pwritev 296 70, recvmmsg 299 243, prlimit64 302 261, syncfs 306 267, sendmmsg 307 269, getcpu 309 168,
sched_getattr 315 275, renameat2 316 276, seccomp 317 277, getrandom 318 278, execveat 322 281, membarrier 324 283,
mlock2 325 284, copy_file_range 326 285, preadv2 327 286, pwritev2 328 287, pkey_mprotect 329 288, statx 332 291,
rseq 334 293, pidfd_send_signal 424 424, pidfd_open 434 434, close_range 436 436, openat2 437 437, faccessat2 439 439,
epoll_pwait2 441 441, landlock_create_ruleset 444 444, futex_waitv 449 449, cachestat 451 451
"""

_NOT_TO_BE_TRIED = """
exit exit_group execve execveat clone fork vfork kill tkill tgkill wait4 waitid
mmap munmap mprotect mremap brk close_range
rt_sigaction rt_sigprocmask rt_sigtimedwait seccomp rseq set_robust_list set_tid_address setrlimit sync setsid
pselect6 ppoll epoll_pwait epoll_pwait2 futex futex_waitv nanosleep clock_nanosleep sched_yield setitimer
"""
NOT_TO_BE_TRIED = frozenset(_NOT_TO_BE_TRIED.split())
"""Allowed calls that end, stop or break a caller with meaningless arguments, or kill by number."""


class Call(NamedTuple):
    """One system call and its answer in each of `SURROUNDINGS`."""

    name: str
    x86_64: int | None
    aarch64: int | None
    answers: tuple[str, ...]

    def number(self, machine: str) -> int | None:
        return self.x86_64 if machine == "x86_64" else self.aarch64


def _number(text: str) -> int | None:
    return None if text == "-" else int(text)


def _rows(text: str, separator: str) -> list[list[str]]:
    return [row.split() for row in text.replace("\n", separator).split(separator) if row.strip()]


REFUSED = [Call(row[0], _number(row[1]), _number(row[2]), tuple(row[3:])) for row in _rows(_REFUSED, "\n")]
ALLOWED = [Call(row[0], _number(row[1]), _number(row[2]), ("allow",) * 3) for row in _rows(_ALLOWED, ",")]
