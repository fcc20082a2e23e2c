# $1: 0 where nothing of it stays.
if [ "$1" -eq 0 ]; then
    if [ -d /run/systemd/system ]; then
        systemctl stop gpuadmit.service gpuadmit.socket || :
    fi
    systemctl disable gpuadmit.service gpuadmit.socket || :
fi
