"""What each user of a shared head may do: real accounts of the operating system, over a real sshd."""
