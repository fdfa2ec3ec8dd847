"""The daemon must never ask its own mount anything: programs on the mount, listings below the root."""

from tests.helpers.mounted import Mount

PROGRAM = """
import os, sys
for i in range(20):
    open('made', 'w').write(str(i)); os.rename('made', 'made2'); os.unlink('made2')
"""


def test_a_program_on_the_mount_works_there(mount: Mount) -> None:
    user = mount.user()
    assert user.run("echo x > unread; cp $(readlink -f /usr/bin/python3) ./py && cp /bin/cp /bin/rm .").status == 0
    agent = mount.agent()
    (mount.base / "work.py").write_text(PROGRAM)
    for shell in (agent, user):
        assert shell.run("PYTHONHOME=/usr ./py ../work.py && ./cp f g && ./rm g").status == 0
    assert agent.run("./rm unread").refused
    assert "program=rm" in mount.denials()[-1]


def test_a_listing_below_the_root_names_its_parent(mount: Mount) -> None:
    user = mount.user()
    user.run("mkdir -p a/b")
    for _ in range(3):
        done = user.run("ls -lai a/b; ls -ai a | head -2; stat -c %i . a; ls -ai . | head -2")
        assert done.status == 0
    root, a = user.run("stat -c %i . a").out.split()
    assert user.run("ls -ai a").out.split()[:4] == [a, ".", root, ".."]
