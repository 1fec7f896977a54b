"""A directory of the Pod shared with the guest by virtiofs: a vhost-user device that answers FUSE requests.

Debian's virtiofsd wants to be root, to drop its groups and to change its root directory, none of which a launcher Pod
may do. This one needs no right at all: it runs as the launcher's user, in a container of its own that has the
volume and a socket, and whatever the guest asks for is done with that user's rights. It is Python, in which a bad
request is an exception and not a way in.
"""
