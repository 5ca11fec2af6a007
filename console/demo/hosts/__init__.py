"""Several hosts on one machine: each with its own network, processes, mounts, name and sshd. Linux, as root."""
