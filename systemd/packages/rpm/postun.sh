# What was learned (/var/lib/gpuadmit) and a changed configuration (.rpmsave) stay, as everywhere with RPM.
if [ -d /run/systemd/system ]; then
    journalctl --update-catalog || :
    systemctl daemon-reload || :
fi
# RPM removes folders that are listed, and these are not.
if [ "$1" -eq 0 ]; then
    for folder in /usr/share/gpuadmit/prometheus /usr/share/gpuadmit /usr/share/doc/gpuadmit/examples \
        /usr/share/doc/gpuadmit /usr/lib/gpuadmit /etc/gpuadmit; do
        rmdir "$folder" 2>/dev/null || :
    done
fi
