import time, os
from test_kubelet_real import *
async def test_speed(twins, server, tmp_path):
    async def go(cluster, pod, speaks=WEBSOCKET):
        command = f"seq 1 20000000 | head -c {BIG}"
        t=time.time(); c=time.process_time()
        p = await twins.start("exec", pod, "--", "sh","-c",command, cluster=cluster, speaks=speaks)
        p.stdin.close()
        n=0
        while d:=await p.stdout.read(1<<20): n+=len(d)
        await p.wait(); await p.communicate()
        return round(time.time()-t,2), round(time.process_time()-c,2), n-BIG
    async def up(cluster,pod):
        t=time.time()
        f=open(tmp_path/"f","wb"); f.write(os.urandom(1<<20)*100); f.close()
        t=time.time()
        cmd=twins.sandbox.kubectl_command("-n", twins.namespace, "exec","-i",pod,"--","wc","-c",cluster=cluster)
        p=await asyncio.create_subprocess_exec(*cmd, stdin=open(tmp_path/"f","rb"), stdout=asyncio.subprocess.PIPE)
        o,_=await p.communicate()
        return round(time.time()-t,2), int(o)
    for i in range(2):
        print("direct ws", await go(LOWER,POD)); print("ws",await go("upper",WEBSOCKET)); print("spdy node", await go("upper",SPDY)); print("spdy all", await go("upper", SPDY, SPDY))
    print("up direct", await up(LOWER,POD)); print("up", await up("upper",WEBSOCKET)); print("up spdy", await up("upper",SPDY))
