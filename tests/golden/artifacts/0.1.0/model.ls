{"lumc":"space",
"schema":1,
"input":"17bc3392967adcccdf48655a28c5227f5c9f1e4e9ee1f33c99f136f7ddc52d3d",
"digest":"df6d0fd2fd84abfebaa7e1b7dbd472a0364b8270136d6451f38f9820a7cb2c95",
"files":[],
"graph":"lumc graph 1\n\ninput x f32[16, 48]\ninput w f32[48, 32]\nt0 f32[m:16, n:32, k:48] = mul x[m, k], w[k, n]\nt1 f32[m:16, n:32] = sum k:48 of t0[m, n, k]\nt2 f32[m:16, n:32] = exp2 t1[m, n]\nt3 f32[m:16] = sum n:32 of t2[m, n]\nt4 f32[m:16] = recip t3[m]\nt5 f32[m:16, n:32] = mul t2[m, n], t4[m]\noutput y = t5\n",
"instances":[
 {"entry":"main","inputs":["x","w"],"outputs":["t5"],"region":"6cc62fd56d601c3e"}],
"outputs":{"main":[["y","t5"]]},
"regions":[
 {"count":1,"frame":{"axes":["m","n"],"extent":{"k32_2":32,"k48_1":48,"m":16,"n":32},"index":[0,1],"inputs":[{"constant":false,"dtype":"f32","name":"b0","shape":[16,48]},{"constant":false,"dtype":"f32","name":"b1","shape":[48,32]}],"output":{"constant":false,"dtype":"f32","name":"out","shape":[16,32]}},"key":"6cc62fd56d601c3e","terms":[["axis",["m"],[]],["axis",["n"],[]],["axis",["k48_1"],[]],["load",["b0","f32"],[0,2]],["load",["b1","f32"],[2,1]],["bin",["mul"],[3,4]],["red",["sum",["k48_1"]],[5]],["un",["exp2"],[6]],["axis",["k32_2"],[]],["load",["b1","f32"],[2,8]],["bin",["mul"],[3,9]],["red",["sum",["k48_1"]],[10]],["un",["exp2"],[11]],["red",["sum",["k32_2"]],[12]],["un",["recip"],[13]],["bin",["mul"],[7,14]]],"variants":[{"cuts":[6,7,13,14],"value":15}]}],
"statistics":[
 {"classes":12,"fired":{"mul-comm":6},"iterations":2,"nodes":15,"region":"6cc62fd56d601c3e","stop":"saturated"}],
"target":{"arch":"x86-64-v3","bandwidth":20.0,"flags":["-march=x86-64-v3"],"fmas":1,"gflops":100.0,"gpu":null,"l1":32768,"l2":1048576,"lanes":8,"launch_us":0.1,"name":"cpu:x86-64-v3","registers":16,"threads":1}}
