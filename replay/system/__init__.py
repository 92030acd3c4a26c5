"""One loop: any system on any tape and machine. See docs/systems.md."""
