"""``make demo``: a real list becomes real e-mails on one machine, and every one of them is accounted for."""
