# What was learned (/var/lib/gpuadmit) and a changed configuration (.rpmsave) stay, as everywhere with RPM.
if [ -d /run/systemd/system ]; then
    journalctl --update-catalog || :
    systemctl daemon-reload || :
fi
