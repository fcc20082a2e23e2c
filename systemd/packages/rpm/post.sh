# $1: 1 on the first installation, 2 on an upgrade.
systemd-sysusers gpuadmit.conf || :
if [ -d /run/systemd/system ]; then
    journalctl --update-catalog || :
    systemctl daemon-reload || :
fi
if [ "$1" -eq 1 ]; then
    systemctl enable gpuadmit.socket gpuadmit.service || :
    if [ -d /run/systemd/system ]; then
        systemctl start gpuadmit.socket gpuadmit.service || :
    fi
elif [ -d /run/systemd/system ]; then
    # The socket stays, and callers wait in it.
    systemctl try-restart gpuadmit.service || :
fi
