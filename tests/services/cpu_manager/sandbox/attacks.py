"""Attacks of one program each on the walls, the same on every rung. `attack_table` runs them all.

A program prints REACHED where its attack succeeded. It may use `t(what, function)`, which prints that for a function
that returns without an error, `c(number, *arguments)`, a system call by number, and what `outside` offers.
"""

from dataclasses import dataclass

from tests.services.cpu_manager.sandbox.outside import OutsideResources

MIB = 1 << 20

LANDLOCK = frozenset({"root, Landlock", "user, Landlock"})
WATCHED = LANDLOCK | {"root, namespaces", "user, namespaces"}
"""Columns without control groups."""
EVERYWHERE = WATCHED | {"root, control groups"}


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack, and the columns in which docs/sandbox.md documents its success."""

    aim: str
    source: str
    documented: frozenset[str] = frozenset()
    memory_mib: int = 256
    disk_mib: int = 16
    cpu_s: float = 10.0
    wall_s: float = 10.0


def prelude(outside: OutsideResources, patience_s: float) -> str:
    """Return the head of every attack: the names that it uses.

    `patience_s`: time for which tasks beyond the limit must exist. It is 0 where the kernel holds the limit.
    """
    return f"""
import ctypes, errno, fcntl, glob, mmap, os, signal, socket, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
folder, file, abstract = {str(outside.folder)!r}, {str(outside.file)!r}, {chr(0) + outside.abstract!r}
memory, semaphores, messages, victim = {outside.memory}, {outside.semaphores}, {outside.messages}, {outside.process.pid}
tool, patience = os.path.realpath(sys.executable), {patience_s}
def t(what, function):
    try: function()
    except (OSError, ValueError, MemoryError): return
    print('REACHED', what, flush=True)
def c(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0: raise OSError(ctypes.get_errno(), 'call')
    return result
"""


ATTACKS = (
    Attack(
        "read or list files of the host",
        """
for path in ('/etc/shadow', '/etc/hostname', '/root/.bashrc', '/proc/kcore', '/proc/1/environ', file):
    t(path, lambda: open(path, 'rb').read(1))
for path in ('/home', '/var/log', '/run', '/sys/kernel', folder): t(path, lambda: os.listdir(path))
""",
    ),
    Attack(
        "write, make, rename or remove files of the host or of the toolchain",
        """
for path in (file, tool, os.__file__, folder + '/new', '/etc/new', '/usr/new'): t(path, lambda: open(path, 'ab'))
t('truncate', lambda: os.truncate(file, 0)); t('unlink', lambda: os.unlink(file))
t('mkdir', lambda: os.mkdir(folder + '/d'))
t('rename in', lambda: os.rename(file, 'mine')); t('link in', lambda: os.link(file, 'linked'))
t('link tool in', lambda: os.link(os.__file__, 'linked')); open('mine', 'w').close()
t('rename out', lambda: os.rename('mine', folder + '/new')); t('link out', lambda: os.link('mine', folder + '/new'))
""",
    ),
    Attack(
        "change mode, owner, times or attributes of the host's files by path",
        """
me = os.getuid()
for path in (file, folder, tool, os.path.dirname(os.__file__), '/dev/null'):
    t('chmod ' + path, lambda: os.chmod(path, 0o777)); t('chown ' + path, lambda: os.chown(path, me, -1))
    t('utime ' + path, lambda: os.utime(path, (1, 1))); t('touch ' + path, lambda: os.utime(path))
    t('xattr ' + path, lambda: os.setxattr(path, 'user.x', b'1'))
    t('old utime', lambda: c(132, path.encode(), None)); t('old utimes', lambda: c(235, path.encode(), None))
    os.path.lexists('link') and os.unlink('link'); os.symlink(path, 'link')
    t('through a link ' + path, lambda: os.chmod('link', 0o777)); t('times', lambda: os.utime('link'))
    handle = os.open('.', os.O_PATH)
    t('from a directory', lambda: os.chmod(path, 0o777, dir_fd=handle))
""",
    ),
    Attack(
        "change them by descriptor, or by working directory",
        """
for path in (tool, os.__file__, os.path.dirname(os.__file__)):
    fd = os.open(path, os.O_RDONLY)
    t('fchmod', lambda: os.fchmod(fd, 0o777)); t('futimens', lambda: os.utime(fd))
    t('fchown', lambda: os.fchown(fd, os.getuid(), -1))
    t('fsetxattr', lambda: os.setxattr(fd, 'user.x', b'1'))
    t('flags', lambda: fcntl.ioctl(fd, 0x40086602, struct.pack('l', 0x80)))
    t('project', lambda: fcntl.ioctl(fd, 0x401c5820, bytes(28)))
for path in (folder, '/usr', '/'):
    try: os.chdir(path)
    except OSError: continue
    t('here', lambda: os.chmod('.', 0o777)); t('touch here', lambda: os.utime('.'))
    t('file here', lambda: os.chmod('file', 0o600))
    handle = os.open('.', os.O_PATH)
    t('empty path', lambda: c(452, handle, b'', 0o777, 0x1000))
    t('empty times', lambda: c(280, handle, b'', None, 0x1000))
""",
    ),
    Attack(
        "change them through a link that is exchanged during the call",
        """
import threading
open('own', 'w').close(); os.symlink('own', 'a'); os.symlink(file, 'b'); stop = []
def exchange():
    while not stop: c(316, -100, b'a', -100, b'b', 2)
thread = threading.Thread(target=exchange); thread.start()
end = time.monotonic() + 0.5
while time.monotonic() < end:
    try: os.chmod('a', 0o777); os.utime('a', (5, 5))
    except OSError: pass
stop.append(1); thread.join()
""",
    ),
    Attack(
        "watch or lease the toolchain's files, or open them by handle",
        """
t('inotify', lambda: c(294, 0)); t('fanotify', lambda: c(300, 0, 0))
t('lease', lambda: fcntl.fcntl(os.open(tool, os.O_RDONLY), 1024, fcntl.F_RDLCK))
t('notify', lambda: fcntl.fcntl(os.open(os.path.dirname(tool), os.O_RDONLY), 1026, 1))
t('handle', lambda: c(303, -100, b'/', bytes(8) + bytes(128), ctypes.byref(ctypes.c_int()), 0))
""",
    ),
    Attack(
        "lock a file of the toolchain",
        "t('flock', lambda: fcntl.flock(os.open(tool, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB))",
        documented=EVERYWHERE,
    ),
    Attack("tell whether a path of the host exists", "t('stat', lambda: os.stat(file))", documented=LANDLOCK),
    Attack(
        "write a setting below /proc/sys",
        """
for place, _, names in os.walk('/proc/sys'):
    for name in names: t(f'{place}/{name}', lambda: os.open(f'{place}/{name}', os.O_WRONLY))
""",
    ),
    Attack(
        "signal a process outside",
        """
for pid in (victim, -victim):
    for number in (signal.SIGCONT, signal.SIGSTOP, signal.SIGKILL): t(number, lambda: os.kill(pid, number))
""",
    ),
    Attack(
        "tell whether a process of the host exists",
        """
try: os.kill(victim, 0)
except PermissionError: print('REACHED')
except OSError: pass
""",
        documented=LANDLOCK,
    ),
    Attack(
        "read, trace or take descriptors of another process",
        """
for pid in (victim, os.getppid(), 1):
    if pid == os.getpid(): continue
    t('trace', lambda: c(101, 16, pid, 0, 0)); t('read', lambda: c(310, pid, 0, 0, 0, 0, 0))
    t('compare', lambda: c(312, os.getpid(), pid, 0, 0, 0))
    for name in ('mem', 'environ', 'maps'): t(name, lambda: open(f'/proc/{pid}/{name}', 'rb').read(1))
    for name in ('fd', 'root/', 'cwd/'): t(name, lambda: os.listdir(f'/proc/{pid}/{name}'))
    try: pidfd = os.pidfd_open(pid)
    except OSError: continue
    t('descriptor', lambda: c(438, pidfd, 0, 0))
""",
    ),
    Attack(
        "change cores, priority or limits beyond the grant or of others",
        """
t('affinity', lambda: os.sched_setaffinity(0, range(os.cpu_count()))); t('cookie', lambda: c(157, 62, 1, 0, 0, 0))
t('better', lambda: os.setpriority(os.PRIO_PROCESS, 0, -1))
t('realtime', lambda: os.sched_setscheduler(0, 1, os.sched_param(1)))
for pid in (victim, os.getppid()):
    t('affinity', lambda: os.sched_setaffinity(pid, {0})); t('nice', lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    t('limit', lambda: c(302, pid, 7, struct.pack('QQ', 3, 3), None)); t('io', lambda: c(251, 1, pid, 0))
t('all of the user', lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19))
""",
    ),
    Attack(
        "make a network or kernel socket",
        """
for family in set(range(46)) - {1}:
    for kind in (1, 2, 3, 5): t(family, lambda: socket.socket(family, kind))
""",
    ),
    Attack(
        "connect to a named or abstract socket of the host",
        """
for address in (folder + '/stream', abstract, '/run/docker.sock', '/run/systemd/private'):
    t(address, lambda: socket.socket(socket.AF_UNIX).connect(address))
    for kind in (1, 5):
        a, b = socket.socketpair(socket.AF_UNIX, kind); b.close()
        t('again', lambda: a.connect(address))
""",
    ),
    Attack(
        "send to a datagram socket of the host",
        """
for kind in (2, 3):
    t('send', lambda: socket.socketpair(socket.AF_UNIX, kind)[0].sendto(b'x', folder + '/datagrams'))
    t('connect', lambda: socket.socketpair(socket.AF_UNIX, kind)[0].connect(folder + '/datagrams'))
t('socket', lambda: socket.socket(socket.AF_UNIX, 2).sendto(b'x', folder + '/datagrams'))
t('log', lambda: socket.socket(socket.AF_UNIX, 2).connect('/dev/log'))
""",
    ),
    Attack(
        "attach, use or remove System V and message objects of the host",
        """
libc.shmat.restype = ctypes.c_long
t('attach', lambda: c(30, memory, None, 0)); t('remove memory', lambda: c(31, memory, 0, None))
t('send', lambda: c(69, messages, struct.pack('l8s', 1, b'x' * 8), 8, 0o4000))
t('remove queue', lambda: c(71, messages, 0, None))
t('set', lambda: c(65, semaphores, struct.pack('Hhh', 0, 1, 0), 1)); t('remove', lambda: c(66, semaphores, 0, 0, 0))
t('queue by name', lambda: c(241, b'treadle'))
""",
    ),
    Attack(
        "enter or make a namespace, mount, or change root",
        """
for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    t('unshare', lambda: c(272, flag))
    def child():
        if c(56, flag | 17, 0, 0, 0, 0) == 0: os._exit(0)
    t('clone', child)
t('mount', lambda: c(165, b'none', b'/tmp', b'tmpfs', 0, 0))
t('umount', lambda: c(166, b'/proc', 2)); t('chroot', lambda: os.chroot('.'))
t('tree', lambda: c(428, -100, b'/', 1))
t('fsopen', lambda: c(430, b'tmpfs', 0)); t('pivot', lambda: c(155, b'.', b'.'))
""",
    ),
    Attack(
        "use bpf, io_uring, userfaultfd, perf, keyrings, asynchronous IO or secret memory",
        """
t('bpf', lambda: c(321, 0, bytes(64), 64)); t('io_uring', lambda: c(425, 8, ctypes.create_string_buffer(120)))
t('userfaultfd', lambda: c(323, 1)); t('perf', lambda: c(298, struct.pack('II', 1, 112) + bytes(104), 0, -1, -1, 0))
t('key', lambda: c(248, b'user', b'x', b'y', 1, -3)); t('keyctl', lambda: c(250, 0, -3, 1))
t('aio', lambda: c(206, 1000, ctypes.byref(ctypes.c_long(0))))
t('secret', lambda: c(447, 0)); t('personality', lambda: c(135, 0x40000))
""",
    ),
    Attack(
        "call the kernel by the numbers of another architecture",
        "libc.syscall(0x40000000 + 39); print('REACHED')",
    ),
    Attack(
        "become another user through a set-user-id program",
        """
for argv in (['su', 'root', '-c', 'id -u'], ['sudo', '-n', 'id', '-u'], ['newgrp', 'root', '-c', 'id -u']):
    try: output = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=5).stdout
    except (OSError, subprocess.SubprocessError): continue
    if output.strip() == b'0': print('REACHED', argv)
t('set-user-id', lambda: (open('s', 'w').close(), os.chmod('s', 0o4755), os.setuid(0)))
""",
    ),
    Attack(
        "run on after the program's end",
        """
if os.fork() == 0:
    os.setsid()
    for number in set(range(1, 65)) - {9, 19, 32, 33}: signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0: os.execvp('sleep', ['sleep', 'left-by-an-attack', '60', '1d'])
    os._exit(0)
os.wait()
""",
    ),
    Attack(
        "run more processes than allowed",
        """
count = 0
for _ in range(200):
    try:
        if os.fork() == 0: time.sleep(3); os._exit(0)
        count += 1
    except OSError: break
time.sleep(max(0.2, patience))
if count > 64: print('REACHED', count)
""",
    ),
    Attack(
        "run more than twice as many, all forking at full speed",
        """
first, count, until, (reader, writer) = os.getpid(), 0, time.monotonic() + 1.5, os.pipe()
os.set_blocking(reader, False)
while time.monotonic() < until:
    try:
        if os.fork() == 0: os.write(writer, b'x')
        elif os.getpid() == first: count += len(os.read(reader, 65536))
    except OSError: pass
    if count > 128: time.sleep(patience); print('REACHED', count, flush=True); break
if os.getpid() != first: time.sleep(9)
""",
    ),
    Attack(
        "run more threads than processes are allowed",
        """
import _thread
count = _thread.stack_size(65536)
try:
    for _ in range(200): _thread.start_new_thread(time.sleep, (3,)); count += 1
except RuntimeError: pass
time.sleep(patience)
if count > 64: print('REACHED', count, flush=True); time.sleep(0.5)
os._exit(0)
""",
    ),
    Attack(
        "hold more memory than allowed, in one process or many",
        """
for _ in range(4):
    if os.fork() == 0: kept = bytearray(b'x' * (48 << 20)); time.sleep(2); os._exit(0)
time.sleep(1); kept = bytearray(b'x' * (48 << 20)); time.sleep(0.3); print('REACHED')
""",
        memory_mib=128,
    ),
    Attack(
        "hold it under a process name that is no text",
        """
libc.prctl(15, b'\\xff)\\n', 0, 0, 0)
kept = mmap.mmap(-1, 400 << 20)
for at in range(0, len(kept), 4096): kept[at] = 1
time.sleep(0.5); print('REACHED')
""",
        memory_mib=128,
    ),
    Attack(
        "hold it in processes that others may not read",
        """
for _ in range(4):
    if os.fork() == 0: libc.prctl(4, 0, 0, 0, 0); kept = bytearray(b'x' * (96 << 20)); time.sleep(2); os._exit(0)
time.sleep(1.5); print('REACHED')
""",
        memory_mib=128,
    ),
    Attack(
        "hold it in memory files",
        """
for number in range(24):
    fd = os.memfd_create(f'hoard{number}')
    for _ in range(12): os.write(fd, b'x' * (1 << 20))
print('REACHED')
""",
        memory_mib=128,
    ),
    Attack(
        "hold it in System V segments that nothing attaches",
        """
libc.shmat.restype = ctypes.c_void_p; libc.shmdt.argtypes = [ctypes.c_void_p]
for _ in range(16):
    one = c(29, 0, ctypes.c_size_t(16 << 20), 0o1600)
    at = libc.shmat(one, None, 0); ctypes.memset(at, 1, 16 << 20); libc.shmdt(at)
print('REACHED')
""",
        memory_mib=128,
    ),
    Attack(
        "hold it in shared mappings of which one page stays",
        """
libc.mmap.restype = ctypes.c_void_p; libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
for _ in range(64):
    at = libc.mmap(None, ctypes.c_size_t(4 << 20), 3, 0x21, -1, ctypes.c_long(0))
    ctypes.memset(at, 1, 4 << 20); libc.munmap(at + 4096, (4 << 20) - 4096)
time.sleep(0.2); print('REACHED')
""",
        documented=WATCHED,
        memory_mib=128,
    ),
    Attack(
        "hold it in the buffers of socket pairs",
        """
kept, sent = [], 0
while sent < 100 << 20 and len(kept) < 480:
    a, b = socket.socketpair(); kept.append((a, b))
    for one in (a, b):
        one.setblocking(False)
        try:
            while True: sent += one.send(b'x' * 65536)
        except BlockingIOError: pass
time.sleep(0.2); print('REACHED' if sent > 80 << 20 else '', sent)
""",
        documented=WATCHED,
        memory_mib=64,
    ),
    Attack(
        "fill the disk",
        """
for number in range(32):
    with open(f'f{number}', 'wb') as one: one.write(bytes(1 << 20))
time.sleep(0.3); print('REACHED')
""",
    ),
    Attack(
        "fill it with files that are deleted while open",
        """
kept = []
for number in range(4):
    one = open('f', 'wb'); os.unlink('f'); kept.append(one)
    one.write(bytes(12 << 20)); one.flush()
time.sleep(0.3); print('REACHED')
""",
        documented=LANDLOCK,
    ),
    Attack(
        "fill it out of sight: closed directories, deeper than a path",
        """
os.mkdir('closed'); kept = [open(f'closed/{n}', 'wb') for n in range(32)]; os.chmod('closed', 0)
os.mkdir('listed'); open('listed/x', 'w').close(); os.chmod('listed', 0o444)
try:
    for one in kept: one.write(bytes(1 << 20)); one.flush()
    time.sleep(0.3); print('REACHED closed')
except OSError: pass
""",
    ),
    Attack(
        "take more inodes than allowed",
        """
os.mkdir('many'); fd = os.open('many', os.O_RDONLY)
for number in range(70_000): os.mknod(f'e{number}', dir_fd=fd)
print('REACHED')
""",
        wall_s=30.0,
    ),
    Attack(
        "queue signals and timers without end",
        """
kept = 0
while kept < 2000:
    try: c(222, 1, None, ctypes.byref(ctypes.c_long())); kept += 1
    except OSError: break
if kept >= 2000: print('REACHED', kept)
""",
    ),
    Attack(
        "use CPU time under process names that are no text",
        """
libc.prctl(15, b'\\xff', 0, 0, 0)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while True: pass
time.sleep(4); print('REACHED')
""",
        cpu_s=0.5,
    ),
    Attack(
        "use CPU time in children that nobody waits for",
        """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while True: pass
time.sleep(4); print('REACHED')
""",
        cpu_s=0.5,
    ),
)
