"""Commands that mean harm, and what is left of them on the machine: nothing.

Each row is a command and what must hold of its result; whatever the result says, the machine itself is asked
afterwards: did a listener get anything, is a canary changed, has a secret come out, does a process, a file, a mount or
a descriptor remain.
"""

import asyncio
import contextlib
import hashlib
import os
import pathlib
import platform
import secrets
import shlex
import shutil
import socket
import sys
from typing import NamedTuple

import pytest
import pytest_asyncio

from sonde.agents.sandbox import base, choosing
from sonde.core import errors

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt install bubblewrap"
)

PROJECT = pathlib.Path(__file__).parents[2]
LIMITS = base.Limits(seconds=5, memory=128 * 2**20, processes=32, output=4000, disk=8 * 2**20)
PATIENT = base.Limits(seconds=60, memory=128 * 2**20, processes=32, output=4000, disk=8 * 2**20)  # for a busy machine
SHORT = base.Limits(seconds=0.7, memory=128 * 2**20, processes=32, output=4000, disk=8 * 2**20)
ROOT_HOME = "/" + "root"


class Attack(NamedTuple):
    """One row: what kind of harm, how, and what must hold of the result.

    `refused`: it says REFUSED, because the command tried and failed; `stopped`: it was killed for going too far;
    `limited`: either of them, whichever limit it met first; `timed out`: killed because its time was up; `cut`: its
    output was; `kept small` and `harmless`: only the machine is asked.
    """

    kind: str
    command: str
    holds: str = "refused"


def tries(command):
    """A command that says whether it could."""
    return f"if {{ {command}\n}}; then echo ESCAPED; else echo REFUSED; fi"


def python(code):
    return f"python -c {shlex.quote(code)}"


def address(*parts):
    return ".".join(map(str, parts))


def connects(family, where, kind="SOCK_STREAM"):
    return tries(python(f"import socket as s; c=s.socket(s.{family}, s.{kind}); c.settimeout(2); c.connect({where})"))


def calls(name, *arguments):
    """Tries a function of the C library, and fails if that fails."""
    return tries(
        python(f"import ctypes,sys; c=ctypes.CDLL(None,use_errno=True); sys.exit(c.{name}({','.join(arguments)})==-1)")
    )


def writes(path):
    return tries(f"echo harm >> {path}")


NETWORK = [
    tries("curl -sS -m 2 http://127.0.0.1:@PORT@/@MARK@"),
    tries("curl -sS -m 2 http://localhost:@PORT@/@MARK@"),
    tries("curl -sS -m 2 -g 'http://[::1]:@PORT@/'"),
    tries("curl -sS -m 2 http://@HOST@:@PORT@/"),
    tries("wget -q -T 2 -t 1 -O- http://127.0.0.1:@PORT@/"),
    tries("curl -sS -m 2 --unix-socket @SOCKET@ http://x/"),
    tries("curl -sS -m 2 --abstract-unix-socket @ABSTRACT@ http://x/"),
    tries(f"curl -sS -m 2 http://{address(169, 254, 169, 254)}/latest/meta-data/"),
    tries(f"curl -sS -m 2 http://{address(1, 1, 1, 1)}/"),
    tries("curl -sS -m 2 https://example.com/"),
    tries("echo harm > /dev/tcp/127.0.0.1/@PORT@"),
    tries("echo harm > /dev/tcp/@HOST@/@PORT@"),
    tries(f"echo harm > /dev/udp/{address(8, 8, 8, 8)}/53"),
    tries("getent hosts example.com"),
    tries(python("import socket; socket.getaddrinfo('example.com', 80)")),
    connects("AF_INET", "('127.0.0.1', @PORT@)"),
    connects("AF_INET", "('0.0.0.0', @PORT@)"),
    connects("AF_INET", "('@HOST@', @PORT@)"),
    connects("AF_INET6", "('::1', @PORT@)"),
    connects("AF_INET6", "('::ffff:127.0.0.1', @PORT@)"),
    connects("AF_INET6", "('fe80::1', @PORT@, 0, 1)"),
    connects("AF_UNIX", "'\\0@ABSTRACT@'"),
    connects("AF_UNIX", "'@SOCKET@'"),
    connects("AF_VSOCK", "(2, 1024)"),
    connects("AF_VSOCK", "(1, 1024)"),
    tries(python("import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)")),
    tries(python("import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)")),
    tries(python("import socket; socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)")),
    tries(python("import socket; socket.socket(31, socket.SOCK_RAW, 1)")),
    tries("ping -c 1 -W 1 127.0.0.1"),
    tries("ip link add veth0 type veth"),
    tries("grep -v -e lo: -e face -e Inter /proc/net/dev"),
    tries("python -m pip download --retries 0 --timeout 2 six"),
]
NETWORK_HARMLESS = [
    # A datagram to one's own loopback goes out happily, and arrives nowhere.
    python("import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'harm', ('127.0.0.1', @UDP@))"),
    "echo harm > /dev/udp/127.0.0.1/@UDP@",
    python(
        "import socket as s; c=s.socket(s.AF_INET, s.SOCK_DGRAM); c.setsockopt(s.SOL_SOCKET, s.SO_BROADCAST, 1);"
        "c.sendto(b'harm', ('<broadcast>', @UDP@))"
    ),
]
WRITES = [
    *map(writes, ("/harm-@MARK@", "/etc/harm-@MARK@", "/etc/passwd", "/etc/hosts", "/usr/bin/harm-@MARK@")),
    *map(writes, ("/usr/bin/env", "/dev/harm-@MARK@", "../harm-@MARK@", "../../harm-@MARK@", "@CANARY@")),
    *map(writes, ("/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches")),
    *map(writes, ("/proc/sysrq-trigger", "/proc/1/mem", "/sys/harm-@MARK@", "/proc/self/uid_map")),
    *map(writes, ("/sandbox/packages/pytest/__init__.py", "/sandbox/bin/harm", "@PROJECT@/harm-@MARK@")),
    *map(
        writes, ("$(python -c 'import os; print(os.__file__)')", "/sandbox/bin/python", "/bin/bash", "/lib/harm-@MARK@")
    ),
    tries("echo harm > /dev/sda || echo harm > /dev/vda"),
    tries("mkdir /sys /run /var /home"),
    tries("mount -o remount,rw /"),
    tries("mount -t tmpfs none /mnt || mount -t tmpfs none /tmp"),
    tries("mount --bind /workspace /etc"),
    tries("mount -t proc proc /proc"),
    tries("umount -l /proc || umount -l /etc || umount -l /workspace"),
    tries("mknod disk b 8 0 || mknod disk b 254 0"),
    tries("mknod null c 1 3"),
    tries(python("import os; os.mkdir('j'); os.chroot('j'); [os.chdir('..') for _ in range(99)]; os.chroot('.')")),
    tries("chmod 777 / || chmod 777 /etc || chmod 777 /usr"),
    tries("chown 1000 /etc/passwd"),
    tries("rm -rf --no-preserve-root /usr/bin/env /etc/passwd"),
    tries("mv /workspace /moved-@MARK@"),
    tries("rmdir /workspace"),
    tries("ln /etc/passwd hard && echo harm >> hard"),
    tries("ln -s /etc soft && echo harm >> soft/passwd"),
    tries("ln -s @CANARY@ soft && echo harm >> soft"),
    tries("sed -i s/a/b/ /etc/hosts"),
    tries("cp /bin/true /usr/local/bin/true"),
    tries("echo :x:M::x::/tmp/x: > /proc/sys/fs/binfmt_misc/register"),
    tries("echo -1000 > /proc/1/oom_score_adj"),
    tries("hostname harm || echo harm > /proc/sys/kernel/hostname"),
    tries("date -s 2001-01-01"),
]
READS = [
    *(tries(f"cat {path}") for path in ("@CANARY@", "/etc/shadow", "@PROJECT@/pyproject.toml", "/proc/kcore")),
    *(tries(f"cat {path}") for path in ("/proc/@PID@/environ", "/proc/@PID@/cmdline", "/proc/kmsg", "/dev/mem")),
    *(tries(f"cat {path}") for path in ("/proc/1/root@CANARY@", "/proc/self/root/../..@CANARY@", "/dev/kmsg")),
    *(tries(f"cat {path}") for path in ("/proc/self/cwd/../../../..@CANARY@", "/proc/2/root/etc/shadow", "/dev/port")),
    *(tries(f"ls -A {path}") for path in ("/var", "/home", "/run", "/sys", "@FOLDER@", "@PROJECT@", "/lost+found")),
    tries(f"ls -A ~root/.ssh || ls -A {ROOT_HOME}/.ssh || ls -A /home/*/.ssh"),
    tries("cat ~/.ssh/id_rsa ~/.ssh/id_ed25519 ~/.netrc ~/.aws/credentials ~/.config/gh/hosts.yml ~/.bash_history"),
    tries("env | grep @SECRET@"),
    tries("grep -a @SECRET@ /proc/*/environ"),
    tries("find / -xdev -name '*@CANARYNAME@*' 2>/dev/null | grep ."),
    tries("ls /tmp | grep ."),
    tries("dmesg"),
    tries("ls /var/log || cat /var/log/syslog"),
    tries("ps -e -o args | grep -v grep | grep pytest"),
    tries("ls -d /proc/@PID@"),
    tries("cat /proc/self/fd/[4-9] /proc/self/fd/[1-9][0-9]"),
    tries(python("import sonde")),
    tries("git -C @PROJECT@ log -1"),
    tries(
        "ls /dev | grep -v -x -e core -e fd -e full -e null -e ptmx -e pts -e random -e shm -e 'std.*' -e tty -e urandom -e zero"
    ),
    tries("ls /dev/pts | grep -v ptmx"),
    tries("cat < /dev/tty"),
    tries("[ $(hostname) = @HOSTNAME@ ]"),
    calls("open_by_handle_at", "0", "b'x'*64", "0"),
]
POWERS = [
    tries("sudo -n true"),
    tries("su -c true"),
    tries("su root -c true < /dev/null"),
    tries("cp /bin/bash b && chmod 4755 b && [ $(./b -p -c 'id -u') = 0 ]"),
    tries("chmod u+s /usr/bin/env"),
    tries("unshare -r true"),
    tries("unshare -Urm mount -t tmpfs x /tmp"),
    tries("unshare -n true || unshare -p true || unshare -m true || unshare -i true || unshare -u true"),
    tries("nsenter -t 1 -m true || nsenter -t 1 -a true || nsenter -t 1 -U true"),
    tries("bwrap --ro-bind / / --unshare-user true || bwrap --ro-bind / / true"),
    tries("setpriv --reuid 0 true || setpriv --reuid 65534 true"),
    tries("setcap cap_sys_admin+ep /usr/bin/env || capsh --user=root -- -c true"),
    tries("newuidmap $$ 0 0 1"),
    tries("fusermount -u /workspace || fusermount3 -u /workspace"),
    tries("kexec -l /boot/vmlinuz || insmod x.ko || modprobe dummy || swapoff -a || losetup -f"),
    tries("reboot -f || shutdown now || systemctl reboot || init 0"),
    tries("docker -H unix:///var/run/docker.sock ps || curl -sS --unix-socket /var/run/docker.sock http://x/info"),
    tries("dbus-send --system --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.ListNames"),
    tries("systemd-run --user true || systemctl --user start x || loginctl list-sessions"),
    tries("echo 'touch @FOLDER@/harm' | at now"),
    tries("echo '* * * * * touch @FOLDER@/harm' | crontab -"),
    tries("ulimit -u unlimited || ulimit -u 1000"),
    tries(
        "ulimit -d unlimited || ulimit -v unlimited || ulimit -f unlimited || ulimit -n 100000 || ulimit -t unlimited"
    ),
    tries("prlimit --pid $$ --nproc=9999:9999 || prlimit --pid 1 --nofile=99999:99999"),
    tries("nice -n -20 true 2>&1 | grep -v . "),
    tries("chrt -f 50 true || renice -n -20 1"),
    tries("LD_PRELOAD=/workspace/x.so su -c true"),
    tries(
        "mkdir p; printf '#!/bin/sh\\ntouch @FOLDER@/harm' > p/ls; chmod +x p/ls; PATH=$PWD/p:$PATH ls; [ -e @FOLDER@/harm ]"
    ),
    tries("strace -p 1 || gdb -batch -p 1 2>&1 | grep -q Attaching"),
    calls("ptrace", "16", "1", "0", "0"),
    calls("ptrace", "16", "@PID@", "0", "0"),
    calls("kill", "@PID@", "9"),
    calls("unshare", "0x10000000"),
    calls("unshare", "0x00020000"),
    calls("setns", "0", "0"),
    calls("setuid", "0"),
    calls("setgroups", "1", "b'\\0\\0\\0\\0'"),
    calls("mount", "b'none'", "b'/tmp'", "b'tmpfs'", "0", "0"),
    calls("umount2", "b'/workspace'", "2"),
    calls("chroot", "b'/tmp'"),
    calls("sethostname", "b'harm'", "4"),
    calls("reboot", "0x1234567"),
    calls("swapoff", "b'/x'"),
    calls("shmget", "0", "1<<30", "0o1600"),
    calls("semget", "0", "1000", "0o1600"),
    calls("msgget", "0", "0o1600"),
    calls("memfd_create", "b'x'", "0"),
    calls("mq_open", "b'/x'", "0o102", "0o600", "0"),
    calls("process_vm_readv", "1", "0", "0", "0", "0", "0"),
    calls("fanotify_init", "0", "0"),
    calls("settimeofday", "b'\\0'*16", "0"),
    calls("syscall", f"{56 if platform.machine() == 'x86_64' else 220}", "0x10000000|17", "0", "0", "0", "0"),
]
FORK_BOMBS = [
    ":(){ :|:& };:; sleep 100",
    "bomb() { bomb | bomb & }; bomb; sleep 100",
    "echo '$0 & $0 & wait' > b.sh; chmod +x b.sh; bash b.sh; bash -c 'bash b.sh & bash b.sh'; sleep 100",
    "while :; do sleep 1000 & done",
    "yes | xargs -P 0 -I{} sleep 1000",
    python("import os\nwhile True:\n try: os.fork()\n except OSError: pass"),
    python("import os\nwhile True:\n try:\n  if os.fork() == 0: os.setsid()\n except OSError: pass"),
    python(
        "import subprocess\nk=[]\nwhile True:\n try: k.append(subprocess.Popen(['sleep','999']))\n except OSError: pass"
    ),
    python(
        "import threading,time\nwhile True:\n try: threading.Thread(target=time.sleep, args=(999,)).start()\n"
        " except RuntimeError: pass"
    ),
    "perl -e 'fork while fork; fork while 1'",
    "trap '' TERM INT HUP; f() { f & f & wait; }; f",
]
MEMORY = [
    ("limited", tries(python("x = bytearray(1 << 33)"))),
    ("limited", tries(python("x = []\nwhile True: x.append(bytearray(1 << 20))"))),
    ("limited", tries(python("x = 'x'\nwhile True: x += x"))),
    ("limited", tries("tail /dev/zero")),
    ("limited", tries("(x=$(cat /dev/zero | tr '\\0' x))")),
    ("limited", tries("head -c 20M /dev/zero > /dev/shm/x")),
    ("limited", tries("perl -e '$x = \"x\" x (1 << 33)'")),
    (
        "stopped",
        f"for i in $(seq 25); do {python('x = bytearray(60 << 20); import time; time.sleep(99)')} & done; wait",
    ),
    ("stopped", python("import mmap\nm = mmap.mmap(-1, 3 << 30)\nfor i in range(0, 3 << 30, 4096): m[i] = 1")),
    (
        "stopped",
        python(
            "import os,time\nfor _ in range(29):\n if os.fork() == 0:\n  x = bytearray(os.urandom(1)) * (50 << 20)\n"
            "  time.sleep(99)\ntime.sleep(99)"
        ),
    ),
    ("harmless", python("import sys; sys.setrecursionlimit(1 << 30)\ndef f(): f()\nf()")),
    ("harmless", "perl -e 'no warnings; sub f { f() } f()'"),
]
OUTPUT = [
    ("stopped", "yes"),
    ("stopped", "yes >&2"),
    ("stopped", "cat /dev/zero"),
    ("stopped", "cat /dev/urandom"),
    ("stopped", "tr '\\0' x < /dev/zero"),
    ("stopped", "yes & yes >&2 & wait"),
    ("cut", r"yes $'\e]0;harm\a\e[2J\e[?1049h' | head -n 100000"),
    ("cut", r"printf '\e[6n\e[5i%0100000d\x9b\x90' 7"),
    ("cut", "seq 1000000"),
    ("cut", "cat /bin/bash; cat /bin/bash >&2"),
    ("cut", r"python -c 'print(chr(0x202e) * 9999, chr(0x9b) * 9999, chr(13) * 9999)'"),
]
TIME = [
    "sleep 1000",
    "while :; do :; done",
    python("while True: pass"),
    python("import threading\nfor _ in range(8): threading.Thread(target=lambda: any(0 for _ in iter(int, 1))).start()"),
    "trap '' TERM INT HUP QUIT ALRM XCPU; while :; do sleep 1; done",
    python("import signal,time\nfor n in range(1, 65):\n try: signal.signal(n, signal.SIG_IGN)\n except OSError: pass\n"
           "while True: time.sleep(1)"),
    "kill -STOP $$; sleep 100",
    "sleep 1000 & kill -STOP $!; wait",
    "exec sleep 1000",
    "exec >&- 2>&-; sleep 1000",
    "trap 'sleep 1000' EXIT; exit 0",
    "mkfifo f; cat f",
    "cat < <(sleep 1000)",
    "sleep 1000 | sleep 1000",
    "nohup setsid sleep 1000 < /dev/null & wait",
    "timeout 1000 sleep 1000",
    python("import os,time\nos.setsid()\nif os.fork(): os.wait()\ntime.sleep(999)"),
]  # fmt: skip
BACKGROUND = [
    "sleep 1000 &",
    "nohup sleep 1000 > /dev/null 2>&1 &",
    "setsid sleep 1000 &",
    "(setsid sleep 1000 < /dev/null > /dev/null 2>&1 &)",
    "sleep 1000 & disown -a",
    "bash -c 'trap \"\" TERM HUP; sleep 1000' > /dev/null 2>&1 & disown",
    python("import os,time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\nos.closerange(0, 9)\n"
           "time.sleep(999)"),
    "(while :; do echo harm >> log; sleep 0.01; done) > /dev/null 2>&1 &",
    "sleep 1000 & kill -STOP $!",
    "coproc sleep 1000",
]  # fmt: skip
KILLING = [
    "kill -9 -1; sleep 0.1; kill -9 $$",
    "kill -9 1; kill -STOP 1; kill -9 $PPID; echo on",
    "kill -9 @PID@; pkill -9 python; pkill -9 -f pytest; killall -9 python; echo on",
    "for i in $(seq 1 3000); do [ $i = $$ ] || kill -9 $i 2> /dev/null; done; echo on",
    python("import os\nfor n in range(1, 70):\n try: os.kill(1, n)\n except OSError: pass"),
    python("import os; os.killpg(0, 9)"),
]
DISK = [
    ("refused", tries("dd if=/dev/zero of=big bs=1M count=64 2> /dev/null")),
    ("refused", tries("fallocate -l 64M big")),
    ("refused", tries("truncate -s 1T sparse")),
    ("refused", tries("(for i in 1 2 3 4 5; do head -c 4M /dev/zero > f$i || exit 1; done)")),
    ("refused", tries("head -c 100M /dev/zero > /tmp/big")),
    ("refused", tries("touch $(printf 'x%.0s' $(seq 300))")),
    ("refused", tries(python("f = [open(str(i % 3), 'wb') for i in range(9)]\nimport os\n[os.unlink(str(i)) for i in range(3)]\n"
                             "[g.write(bytes(4 << 20)) for g in f]"))),
    ("refused", tries("exec 9> gone; rm gone; head -c 9M /dev/zero >&9")),
    ("stopped", "i=0; while :; do : > file$i; i=$((i+1)); done"),
    ("stopped", python("import os\nfor i in range(1 << 20): os.mkdir(f'd{i}')")),
    ("stopped", python("import os\nos.mknod('a')\nfor i in range(1 << 20): os.link('a', f'l{i}')")),
    ("stopped", python("import os\nfor i in range(1 << 20): os.symlink('x' * 20, f'l{i}')")),
    ("stopped", python("import os\nfor i in range(1 << 20): os.mkdir('d'); os.chdir('d')")),
    ("stopped", python("import os\nfor i in range(1 << 20): os.mkfifo(f'/tmp/f{i}')")),
    ("harmless", "rm -rf /workspace /workspace/* /workspace/.[!.]* / 2> /dev/null"),
    ("harmless", "chmod 000 /workspace; cd /; ls /workspace"),
    ("harmless", python("import os\nfor i in range(256): open(bytes([i]) * 9, 'w') if i not in (0, 47) else 0")),
    ("harmless", r"touch $'-rf\n*' $'\e[2J' '$(touch @FOLDER@/harm)' '; touch @FOLDER@/harm'; ls"),
]  # fmt: skip
ATTACKS = [
    *(Attack("network", command) for command in NETWORK),
    *(Attack("network", command, "harmless") for command in NETWORK_HARMLESS),
    *(Attack("writing outside", command) for command in WRITES),
    *(Attack("reading the machine", command) for command in READS),
    *(Attack("powers", command) for command in POWERS),
    *(Attack("fork bomb", command, "kept small") for command in FORK_BOMBS),
    *(Attack("memory", command, holds) for holds, command in MEMORY),
    *(Attack("output", command, holds) for holds, command in OUTPUT),
    *(Attack("time", command, "timed out") for command in TIME),
    *(Attack("background", command, "harmless") for command in BACKGROUND),
    *(Attack("killing", command, "harmless") for command in KILLING),
    *(Attack("disk", command, holds) for holds, command in DISK),
]


class Machine:
    """What an attack could reach, and whether it did."""

    def __init__(self, folder):
        self.folder = folder
        self.secret = secrets.token_hex(8)
        self.canary = folder / f"canary-{secrets.token_hex(4)}"
        self.canary.write_text(self.secret)
        self.canary.chmod(0o666)
        abstract = f"sonde-{secrets.token_hex(4)}"
        self.listeners = [
            socket.create_server(("0.0.0.0", 0)),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            socket.socket(socket.AF_UNIX),
            socket.socket(socket.AF_UNIX),
        ]
        self.listeners[1].bind(("0.0.0.0", 0))
        self.listeners[2].bind(str(folder / "socket"))
        self.listeners[3].bind(f"\0{abstract}")
        for listener in self.listeners[2:]:
            listener.listen()
        for listener in self.listeners:
            listener.setblocking(False)
        self.words = {
            "PORT": self.listeners[0].getsockname()[1],
            "UDP": self.listeners[1].getsockname()[1],
            "SOCKET": folder / "socket",
            "ABSTRACT": abstract,
            "HOST": own_address(),
            "HOSTNAME": socket.gethostname(),
            "PID": os.getpid(),
            "SECRET": self.secret,
            "CANARY": self.canary,
            "CANARYNAME": self.canary.name,
            "FOLDER": folder,
            "PROJECT": PROJECT,
        }
        self.before = self.state()

    def state(self):
        """Everything that must be the same afterwards."""
        watched = [pathlib.Path(path) for path in ("/etc/passwd", "/etc/hosts", "/usr/bin/env", "/bin/bash")]
        watched += [PROJECT / "LICENSE", pathlib.Path(sys.executable), pathlib.Path(os.__file__), self.canary]
        mounts = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
        return {
            "contents": {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in watched},
            "modes": [pathlib.Path(path).stat().st_mode for path in ("/", "/etc", "/usr", "/usr/bin/env", self.canary)],
            "folder": sorted(self.folder.iterdir()),
            "hostname": socket.gethostname(),
            "mounts": [line for line in mounts if base.WORKSPACE in line or "newroot" in line],
            "core_pattern": pathlib.Path("/proc/sys/kernel/core_pattern").read_text(),
        }

    def check(self, mark):
        assert self.state() == self.before
        assert [self.reached(listener) for listener in self.listeners] == [False] * 4
        assert processes_with(mark) == []
        places = ["/", "/tmp", "/etc", "/usr", "/usr/bin", "/dev", "/lib", PROJECT, PROJECT.parent, self.folder]
        assert [path for place in places for path in pathlib.Path(place).glob(f"*{mark}*")] == []

    @staticmethod
    def reached(listener):
        try:
            if listener.type == socket.SOCK_DGRAM:
                listener.recv(1)
            else:
                listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    def close(self):
        for listener in self.listeners:
            listener.close()


def own_address():
    """This machine's own address on its network; the loopback where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address(192, 0, 2, 1), 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return probe.getsockname()[0]


def processes_with(mark):
    """The machine's processes that carry a mark in their command line or environment."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (folder / "cmdline").read_bytes() + b"\0" + (folder / "environ").read_bytes()
            if mark.encode() in text:
                found.append(int(folder.name))
    return found


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    # A folder of the machine's own temporary folder, as another program would have it.
    made = Machine(tmp_path_factory.mktemp("hostile"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SONDE_HOSTILE_SECRET", made.secret)
        yield made
    made.close()


def armed(command, machine, mark):
    """The command with the machine's facts in it, and a mark that all its processes carry."""
    for word, value in {**machine.words, "MARK": mark}.items():
        command = command.replace(f"@{word}@", str(value))
    return f"export HARM={mark}\n{command}"


async def most_used(mark, task):
    """The most processes, and the most bytes resident in them, that carried the mark while a task ran."""
    processes = memory = 0
    while not task.done():
        found = await asyncio.to_thread(processes_with, mark)
        processes, memory = max(processes, len(found)), max(memory, sum(map(resident, found)))
        await asyncio.wait([task], timeout=0.05)
    return processes, memory


def resident(pid):
    with contextlib.suppress(OSError):
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox():
    """One for all: what an attack breaks in it, the next one finds broken."""
    async with choosing.open_sandbox("bubblewrap", limits=LIMITS) as opened:
        yield opened


def check_result(result, holds):
    if holds == "refused":
        assert result.output.endswith("REFUSED\n")
        assert "ESCAPED" not in result.output
    elif holds == "limited":
        assert result.output.endswith("REFUSED\n") or result.note.endswith("bytes of memory")
        assert "ESCAPED" not in result.output
    elif holds == "stopped":
        assert (result.exit_code, result.timed_out) == (None, False)
        assert result.note.startswith("it ")
    elif holds == "timed out":
        assert (result.exit_code, result.timed_out) == (None, True)
    elif holds == "cut":
        assert result.truncated
    assert len(result.output.encode()) < 6 * LIMITS.output + 200  # a control byte is spelled with up to six
    assert all(char in "\n\t" or " " <= char < "\x7f" or char >= "\xa0" for char in result.output)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("attack", ATTACKS, ids=[f"{one.kind}-{n}" for n, one in enumerate(ATTACKS)])
async def test_a_hostile_command_is_contained(attack, machine, sandbox):
    mark = f"harm{secrets.token_hex(6)}"
    limits = {"timed out": SHORT, "kept small": SHORT, "stopped": PATIENT}.get(attack.holds, LIMITS)
    running = asyncio.ensure_future(sandbox.run(armed(attack.command, machine, mark), limits=limits))
    if attack.kind in ("fork bomb", "memory"):
        processes, memory = await most_used(mark, running)
        assert processes <= limits.processes + 3
        assert memory < 2**30
    result = await running
    machine.check(mark)
    assert machine.secret not in result.output
    check_result(result, attack.holds)
    after = await sandbox.run("find . -mindepth 1 -delete; ls -A; echo on", limits=PATIENT)
    assert after.output == "on\n", after


def test_there_are_attacks_of_every_kind():
    assert len(ATTACKS) >= 100
    assert len({attack.command for attack in ATTACKS}) == len(ATTACKS)


def test_the_machine_notices_what_it_should(machine, tmp_path):
    """The checks themselves: each must fail when the harm is done."""
    other = Machine(tmp_path)
    other.check("no-such-mark")
    with socket.create_connection(("127.0.0.1", other.words["PORT"])), pytest.raises(AssertionError):
        other.check("no-such-mark")
    other.canary.write_text("changed")
    with pytest.raises(AssertionError):
        other.check("no-such-mark")
    other.canary.write_text(other.secret)
    other.check("no-such-mark")
    assert os.getpid() in processes_with(pathlib.Path("/proc/self/cmdline").read_bytes().decode().split("\0")[0])
    other.close()


LINKS = [
    ("ln -s /etc/passwd trap", "trap"),
    ("ln -s @CANARY@ trap", "trap"),
    ("ln -s @FOLDER@ trap", "trap/@CANARYNAME@"),
    ("ln -s / trap", "trap@CANARY@"),
    ("ln -s / trap", "trap/etc/passwd"),
    ("ln -s .. trap", "trap/etc/passwd"),
    ("ln -s /proc/self/root trap", "trap/etc/passwd"),
    ("ln -s /proc/self/environ trap", "trap"),
    ("ln -s /proc trap", "trap/self/environ"),
    ("ln -s trap trap", "trap"),
    ("ln -s b a; ln -s a b", "a/x"),
    ("mkdir d; ln -s ../../.. d/up", "d/up/etc/passwd"),
    ("ln -s /dev/zero trap", "trap"),
    ("mkfifo trap", "trap"),
    ("mkfifo trap", "trap/x"),
    ("mkdir trap", "trap"),
    (python("import socket; socket.socket(socket.AF_UNIX).bind('trap')"), "trap"),
    ("ln -s /workspace trap", "trap/trap"),
]


@pytest.mark.parametrize(("command", "path"), LINKS, ids=[f"link-{n}" for n in range(len(LINKS))])
async def test_no_link_or_device_leads_out_of_the_working_folder(command, path, machine):
    mark = f"harm{secrets.token_hex(6)}"
    async with choosing.open_sandbox("bubblewrap", limits=LIMITS) as sandbox:
        await sandbox.run(armed(command, machine, mark))
        for word, value in machine.words.items():
            path = path.replace(f"@{word}@", str(value))
        with pytest.raises(errors.SandboxError):
            await sandbox.get(path)
        # Writing either is refused too or replaces the link itself.
        with contextlib.suppress(errors.SandboxError):
            await sandbox.put({path: "harm"})
            assert await sandbox.get(path) == b"harm"
    machine.check(mark)


async def test_a_file_with_a_hole_cannot_be_used_to_fill_memory():
    async with choosing.open_sandbox("bubblewrap", limits=LIMITS) as sandbox:
        await sandbox.run("truncate -s 8M hole")
        assert len(await sandbox.get("hole")) == 8 * 2**20
        await sandbox.run("truncate -s 1T hole", limits=base.Limits(disk=2**50))
        with pytest.raises(errors.SandboxError, match="at most"):
            await sandbox.get("hole")


async def test_swapping_folders_and_links_while_files_are_written_and_read_leads_nowhere(machine):
    mark = f"harm{secrets.token_hex(6)}"
    swap = "mkdir real; while :; do mv real d; mv d real; ln -s @FOLDER@ d; rm d; done 2> /dev/null"
    async with choosing.open_sandbox("bubblewrap", limits=LIMITS) as sandbox:
        running = asyncio.ensure_future(sandbox.run(armed(swap, machine, mark), limits=SHORT))
        got = set()
        while not running.done():
            with contextlib.suppress(errors.SandboxError):
                await sandbox.put({f"d/{mark}": "harm"})
            with contextlib.suppress(errors.SandboxError):
                got.add(await sandbox.get(f"d/{machine.canary.name}"))
        assert got == set()
        assert (await running).timed_out
    machine.check(mark)


async def test_a_server_inside_cannot_be_reached_from_outside():
    async with choosing.open_sandbox("bubblewrap", limits=LIMITS) as sandbox:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        code = python(
            f"import socket; s = socket.create_server(('0.0.0.0', {port})); open('up', 'w'); s.settimeout(1); s.accept()"
        )
        running = asyncio.ensure_future(sandbox.run(code))
        while not running.done():
            with contextlib.suppress(errors.SandboxError):
                await sandbox.get("up")
                break
        for place in ("127.0.0.1", own_address()):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((place, port), timeout=5)
        assert "timed out" in (await running).output


async def test_many_hostile_commands_at_once_are_contained(machine):
    mark = f"harm{secrets.token_hex(6)}"
    chosen = [attack for attack in ATTACKS if attack.kind in ("fork bomb", "time")][::4]

    async def attack(one):
        async with choosing.open_sandbox("bubblewrap", limits=SHORT) as sandbox:
            await sandbox.run(armed(one.command, machine, mark))

    await asyncio.gather(*map(attack, chosen))
    machine.check(mark)
